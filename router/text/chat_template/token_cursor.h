#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "router/text/chat_template/lexer.h"

namespace winnow::chat_template {

// A place in the tokens of a template, which parsers look at and move on. Errors name its line.
class TokenCursor {
 public:
  // `tokens` end in kEnd.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Current() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take();
  // True, and moved on, when it is that.
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  absl::Status ExpectOperator(std::string_view op);
  absl::StatusOr<std::string> ExpectName();
  absl::Status Error(std::string_view what) const;
  // Error "unexpected <token>, expected <what>".
  absl::Status Unexpected(std::string_view expected) const;

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace winnow::chat_template
