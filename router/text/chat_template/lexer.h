#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow::chat_template {

struct Token {
  enum class Kind {
    kText,         // text outside of tags, whitespace control applied
    kOutputBegin,  // {{
    kOutputEnd,    // }}
    kBlockBegin,   // {%
    kBlockEnd,     // %}
    kName,
    kString,  // text: unescaped
    kInteger,
    kFloat,
    kOperator,  // text: the operator or bracket
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int64_t integer = 0;
  double number = 0;
  int line = 0;

  bool IsOperator(std::string_view op) const { return kind == Kind::kOperator && text == op; }
  bool IsName(std::string_view name) const { return kind == Kind::kName && text == name; }
};

// Cuts a template into tokens, ending in kEnd. Whitespace control is Jinja's with trim_blocks and lstrip_blocks on:
// the newline after a block or comment is dropped, and so is white space between the start of a line and a block or
// comment; "-" drops all white space on its side, "+" keeps it. One newline at the end of the template is dropped.
// Errors name the line.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace winnow::chat_template
