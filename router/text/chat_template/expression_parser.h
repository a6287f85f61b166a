#pragma once
#include <string>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/token_cursor.h"

namespace winnow::chat_template {

// The expression half of the grammar:
//   or > and > not > comparison > + - > ~ > * / // % > ** > unary > postfix > filters and tests
class ExpressionParser : public TokenCursor {
 public:
  using TokenCursor::TokenCursor;

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

  int nesting_ = 0;
};

}  // namespace winnow::chat_template
