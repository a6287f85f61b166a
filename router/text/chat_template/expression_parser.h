#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/lexer.h"

namespace winnow::chat_template {

// A cursor over tokens with the expression half of the grammar:
//   or > and > not > comparison > + - > ~ > * / // % > ** > unary > postfix > filters and tests
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Current() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  absl::Status ExpectOperator(std::string_view op);
  absl::StatusOr<std::string> ExpectName();
  absl::Status Error(std::string_view what) const;
  // Error "unexpected <token>, expected <what>".
  absl::Status Unexpected(std::string_view expected) const;

  // An expression, with commas a tuple.
  absl::StatusOr<ExpressionPtr> TupleOrExpression();
  absl::StatusOr<ExpressionPtr> Expr();
  // Without a trailing "if", which a for loop uses for its filter.
  absl::StatusOr<ExpressionPtr> TupleOrExpressionWithoutIf();
  // Filters behind `input`, which may be null: the input is then filled in later.
  absl::StatusOr<ExpressionPtr> FilterChain(ExpressionPtr input);

 private:
  using Parsed = absl::StatusOr<ExpressionPtr>;
  class Nesting;

  Parsed Tuple(bool with_if);
  Parsed Conditional();
  Parsed Or();
  Parsed And();
  Parsed Not();
  Parsed Comparison();
  Parsed Sum();
  Parsed Concatenation();
  Parsed Product();
  Parsed Power();
  Parsed Unary(bool with_filter);
  Parsed Primary();
  Parsed Postfix(ExpressionPtr node);
  Parsed Subscript(ExpressionPtr node);
  Parsed FiltersAndTests(ExpressionPtr node);
  Parsed Filter(ExpressionPtr node);
  Parsed Test(ExpressionPtr node);
  Parsed ListLiteral();
  Parsed DictLiteral();
  Parsed Parenthesised();
  absl::Status CallArguments(Expression* call);
  absl::StatusOr<std::string> DottedName();

  ExpressionPtr New(Expression::Kind kind) const;
  // Moves a child in and keeps the tree's depth bounded.
  absl::Status Adopt(Expression* parent, ExpressionPtr child) const;
  Parsed Binary(Operator op, ExpressionPtr left, ExpressionPtr right) const;

  const std::vector<Token> tokens_;  // ends in kEnd
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace winnow::chat_template
