#include "router/text/chat_template/expression_parser.h"

#include <algorithm>
#include <array>

namespace winnow::chat_template {
namespace {

constexpr int kMaxNesting = 60;           // each level of brackets takes a dozen calls of the parser
constexpr int kMaxExpressionDepth = 200;  // of a tree, which the interpreter descends

}  // namespace

// Bounds the parser's recursion.
class ExpressionParser::Nesting {
 public:
  explicit Nesting(ExpressionParser* parser) : parser_(parser) { ++parser_->nesting_; }
  ~Nesting() { --parser_->nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  absl::Status Check() const {
    return parser_->nesting_ <= kMaxNesting ? absl::OkStatus() : parser_->Error("expression is nested too deeply");
  }

 private:
  ExpressionParser* const parser_;
};

ExpressionPtr ExpressionParser::New(Expression::Kind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = Current().line;
  return node;
}

absl::Status ExpressionParser::Adopt(Expression* parent, ExpressionPtr child) const {
  if (child != nullptr) parent->depth = std::max(parent->depth, child->depth + 1);
  parent->operands.push_back(std::move(child));
  return parent->depth <= kMaxExpressionDepth ? absl::OkStatus() : Error("expression is nested too deeply");
}

ExpressionParser::Parsed ExpressionParser::Binary(Operator op, ExpressionPtr left, ExpressionPtr right) const {
  ExpressionPtr node = New(Expression::Kind::kBinary);
  node->operators.push_back(op);
  WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(left)));
  WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(right)));
  return node;
}

ExpressionParser::Parsed ExpressionParser::TupleOrExpression() {
  return Tuple(/*with_if=*/true);
}
ExpressionParser::Parsed ExpressionParser::TupleOrExpressionWithoutIf() {
  return Tuple(/*with_if=*/false);
}

ExpressionParser::Parsed ExpressionParser::Tuple(bool with_if) {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr first, with_if ? Expr() : Or());
  if (!Current().IsOperator(",")) return first;
  ExpressionPtr tuple = New(Expression::Kind::kTuple);
  WINNOW_RETURN_IF_ERROR(Adopt(tuple.get(), std::move(first)));
  while (SkipOperator(",")) {
    const Token& next = Current();
    if (next.kind == Token::Kind::kBlockEnd || next.kind == Token::Kind::kOutputEnd || next.IsOperator(")")) break;
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr item, with_if ? Expr() : Or());
    WINNOW_RETURN_IF_ERROR(Adopt(tuple.get(), std::move(item)));
  }
  return tuple;
}

ExpressionParser::Parsed ExpressionParser::Expr() {
  const Nesting nesting(this);
  WINNOW_RETURN_IF_ERROR(nesting.Check());
  return Conditional();
}

ExpressionParser::Parsed ExpressionParser::Conditional() {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr value, Or());
  while (Current().IsName("if")) {
    ExpressionPtr node = New(Expression::Kind::kConditional);
    Take();
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr condition, Or());
    ExpressionPtr other;
    if (SkipName("else")) {
      WINNOW_ASSIGN_OR_RETURN(other, Expr());
    }
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(value)));
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(condition)));
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(other)));
    value = std::move(node);
  }
  return value;
}

ExpressionParser::Parsed ExpressionParser::Or() {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr left, And());
  while (Current().IsName("or")) {
    ExpressionPtr node = New(Expression::Kind::kOr);
    Take();
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr right, And());
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(left)));
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(right)));
    left = std::move(node);
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::And() {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr left, Not());
  while (Current().IsName("and")) {
    ExpressionPtr node = New(Expression::Kind::kAnd);
    Take();
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr right, Not());
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(left)));
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(right)));
    left = std::move(node);
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::Not() {
  if (!Current().IsName("not")) return Comparison();
  const Nesting nesting(this);
  WINNOW_RETURN_IF_ERROR(nesting.Check());
  ExpressionPtr node = New(Expression::Kind::kNot);
  Take();
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr operand, Not());
  WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(operand)));
  return node;
}

ExpressionParser::Parsed ExpressionParser::Comparison() {
  constexpr std::array<std::pair<std::string_view, Operator>, 6> kOperators = {{{"==", Operator::kEq},
                                                                                {"!=", Operator::kNe},
                                                                                {"<=", Operator::kLe},
                                                                                {">=", Operator::kGe},
                                                                                {"<", Operator::kLt},
                                                                                {">", Operator::kGt}}};
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr left, Sum());
  ExpressionPtr node;
  for (;;) {
    std::optional<Operator> op;
    for (const auto& [text, candidate] : kOperators) {
      if (Current().IsOperator(text)) op = candidate;
    }
    if (Current().IsName("in")) op = Operator::kIn;
    if (Current().IsName("not") && Ahead().IsName("in")) {
      Take();
      op = Operator::kNotIn;
    }
    if (!op.has_value()) return node == nullptr ? std::move(left) : std::move(node);
    if (node == nullptr) {
      node = New(Expression::Kind::kCompare);
      WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(left)));
    }
    Take();
    node->operators.push_back(*op);
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr right, Sum());
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(right)));
  }
}

ExpressionParser::Parsed ExpressionParser::Sum() {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr left, Concatenation());
  while (Current().IsOperator("+") || Current().IsOperator("-")) {
    const Operator op = Take().text == "+" ? Operator::kAdd : Operator::kSub;
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr right, Concatenation());
    WINNOW_ASSIGN_OR_RETURN(left, Binary(op, std::move(left), std::move(right)));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::Concatenation() {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr first, Product());
  if (!Current().IsOperator("~")) return first;
  ExpressionPtr node = New(Expression::Kind::kConcat);
  WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(first)));
  while (SkipOperator("~")) {
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr next, Product());
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(next)));
  }
  return node;
}

ExpressionParser::Parsed ExpressionParser::Product() {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr left, Power());
  for (;;) {
    Operator op;
    if (Current().IsOperator("*")) {
      op = Operator::kMul;
    } else if (Current().IsOperator("/")) {
      op = Operator::kDiv;
    } else if (Current().IsOperator("//")) {
      op = Operator::kFloorDiv;
    } else if (Current().IsOperator("%")) {
      op = Operator::kMod;
    } else {
      return left;
    }
    Take();
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr right, Power());
    WINNOW_ASSIGN_OR_RETURN(left, Binary(op, std::move(left), std::move(right)));
  }
}

ExpressionParser::Parsed ExpressionParser::Power() {
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr left, Unary(/*with_filter=*/true));
  while (SkipOperator("**")) {
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr right, Unary(/*with_filter=*/true));
    WINNOW_ASSIGN_OR_RETURN(left, Binary(Operator::kPow, std::move(left), std::move(right)));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::Unary(bool with_filter) {
  const Nesting nesting(this);
  WINNOW_RETURN_IF_ERROR(nesting.Check());
  ExpressionPtr node;
  if (Current().IsOperator("-") || Current().IsOperator("+")) {
    node = New(Current().IsOperator("-") ? Expression::Kind::kNegative : Expression::Kind::kPositive);
    Take();
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr operand, Unary(/*with_filter=*/false));
    WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(operand)));
  } else {
    WINNOW_ASSIGN_OR_RETURN(node, Primary());
  }
  WINNOW_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
  if (!with_filter) return node;
  return FiltersAndTests(std::move(node));
}

ExpressionParser::Parsed ExpressionParser::Primary() {
  ExpressionPtr node = New(Expression::Kind::kConstant);
  const Token& token = Current();
  switch (token.kind) {
    case Token::Kind::kName:
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        node->constant = Value(token.text == "true" || token.text == "True");
      } else if (token.text == "none" || token.text == "None") {
        node->constant = Value(None{});
      } else {
        node->kind = Expression::Kind::kName;
        node->name = token.text;
      }
      Take();
      return node;
    case Token::Kind::kString: {
      std::string text;
      while (Current().kind == Token::Kind::kString) text.append(Take().text);
      node->constant = Value::String(std::move(text));
      return node;
    }
    case Token::Kind::kInteger:
      node->constant = Value(Take().integer);
      return node;
    case Token::Kind::kFloat:
      node->constant = Value(Take().number);
      return node;
    default:
      break;
  }
  if (token.IsOperator("(")) return Parenthesised();
  if (token.IsOperator("[")) return ListLiteral();
  if (token.IsOperator("{")) return DictLiteral();
  return Unexpected("an expression");
}

ExpressionParser::Parsed ExpressionParser::Parenthesised() {
  ExpressionPtr empty = New(Expression::Kind::kTuple);
  Take();
  if (SkipOperator(")")) return empty;
  WINNOW_ASSIGN_OR_RETURN(ExpressionPtr inner, TupleOrExpression());
  WINNOW_RETURN_IF_ERROR(ExpectOperator(")"));
  return inner;
}

ExpressionParser::Parsed ExpressionParser::ListLiteral() {
  ExpressionPtr list = New(Expression::Kind::kList);
  Take();
  while (!SkipOperator("]")) {
    if (!list->operands.empty()) {
      WINNOW_RETURN_IF_ERROR(ExpectOperator(","));
      if (SkipOperator("]")) break;
    }
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr item, Expr());
    WINNOW_RETURN_IF_ERROR(Adopt(list.get(), std::move(item)));
  }
  return list;
}

ExpressionParser::Parsed ExpressionParser::DictLiteral() {
  ExpressionPtr dict = New(Expression::Kind::kDict);
  Take();
  while (!SkipOperator("}")) {
    if (!dict->operands.empty()) {
      WINNOW_RETURN_IF_ERROR(ExpectOperator(","));
      if (SkipOperator("}")) break;
    }
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr key, Expr());
    WINNOW_RETURN_IF_ERROR(ExpectOperator(":"));
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr value, Expr());
    WINNOW_RETURN_IF_ERROR(Adopt(dict.get(), std::move(key)));
    WINNOW_RETURN_IF_ERROR(Adopt(dict.get(), std::move(value)));
  }
  return dict;
}

ExpressionParser::Parsed ExpressionParser::Postfix(ExpressionPtr node) {
  for (;;) {
    if (Current().IsOperator(".")) {
      ExpressionPtr parent = New(Expression::Kind::kAttribute);
      Take();
      if (Current().kind == Token::Kind::kInteger) {
        parent->kind = Expression::Kind::kSubscript;
        ExpressionPtr index = New(Expression::Kind::kConstant);
        index->constant = Value(Take().integer);
        WINNOW_RETURN_IF_ERROR(Adopt(parent.get(), std::move(node)));
        WINNOW_RETURN_IF_ERROR(Adopt(parent.get(), std::move(index)));
      } else {
        WINNOW_ASSIGN_OR_RETURN(parent->name, ExpectName());
        WINNOW_RETURN_IF_ERROR(Adopt(parent.get(), std::move(node)));
      }
      node = std::move(parent);
    } else if (Current().IsOperator("[")) {
      WINNOW_ASSIGN_OR_RETURN(node, Subscript(std::move(node)));
    } else if (Current().IsOperator("(")) {
      ExpressionPtr call = New(Expression::Kind::kCall);
      WINNOW_RETURN_IF_ERROR(Adopt(call.get(), std::move(node)));
      WINNOW_RETURN_IF_ERROR(CallArguments(call.get()));
      node = std::move(call);
    } else {
      return node;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::Subscript(ExpressionPtr node) {
  ExpressionPtr parent = New(Expression::Kind::kSlice);
  Take();
  WINNOW_RETURN_IF_ERROR(Adopt(parent.get(), std::move(node)));
  int colons = 0;
  ExpressionPtr parts[3];
  while (!Current().IsOperator("]")) {
    if (Current().IsOperator(":")) {
      if (++colons > 2) return Unexpected("']'");
      Take();
      continue;
    }
    if (parts[colons] != nullptr) return Unexpected("']'");
    WINNOW_ASSIGN_OR_RETURN(parts[colons], Expr());
  }
  Take();
  if (colons == 0) {
    if (parts[0] == nullptr) return Error("empty subscript");
    parent->kind = Expression::Kind::kSubscript;
    WINNOW_RETURN_IF_ERROR(Adopt(parent.get(), std::move(parts[0])));
    return parent;
  }
  for (ExpressionPtr& part : parts) WINNOW_RETURN_IF_ERROR(Adopt(parent.get(), std::move(part)));
  return parent;
}

absl::Status ExpressionParser::CallArguments(Expression* call) {
  WINNOW_RETURN_IF_ERROR(ExpectOperator("("));
  bool first = true;
  while (!SkipOperator(")")) {
    if (!first) {
      WINNOW_RETURN_IF_ERROR(ExpectOperator(","));
      if (SkipOperator(")")) break;
    }
    first = false;
    if (Current().IsOperator("*") || Current().IsOperator("**")) return Error("* arguments are not supported");
    if (Current().kind == Token::Kind::kName && Ahead().IsOperator("=")) {
      const std::string name = Take().text;
      Take();
      WINNOW_ASSIGN_OR_RETURN(ExpressionPtr value, Expr());
      call->depth = std::max(call->depth, value->depth + 1);
      call->named.emplace_back(name, std::move(value));
      continue;
    }
    if (!call->named.empty()) return Error("positional argument after a named one");
    WINNOW_ASSIGN_OR_RETURN(ExpressionPtr value, Expr());
    WINNOW_RETURN_IF_ERROR(Adopt(call, std::move(value)));
  }
  return call->depth <= kMaxExpressionDepth ? absl::OkStatus() : Error("expression is nested too deeply");
}

ExpressionParser::Parsed ExpressionParser::FiltersAndTests(ExpressionPtr node) {
  for (;;) {
    if (Current().IsOperator("|")) {
      Take();
      WINNOW_ASSIGN_OR_RETURN(node, Filter(std::move(node)));
    } else if (Current().IsName("is")) {
      Take();
      WINNOW_ASSIGN_OR_RETURN(node, Test(std::move(node)));
    } else if (Current().IsOperator("(")) {
      WINNOW_ASSIGN_OR_RETURN(node, Postfix(std::move(node)));
    } else {
      return node;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::FilterChain(ExpressionPtr node) {
  WINNOW_ASSIGN_OR_RETURN(node, Filter(std::move(node)));
  while (SkipOperator("|")) {
    WINNOW_ASSIGN_OR_RETURN(node, Filter(std::move(node)));
  }
  return node;
}

absl::StatusOr<std::string> ExpressionParser::DottedName() {
  WINNOW_ASSIGN_OR_RETURN(std::string name, ExpectName());
  while (SkipOperator(".")) {
    WINNOW_ASSIGN_OR_RETURN(const std::string next, ExpectName());
    name.append(".").append(next);
  }
  return name;
}

ExpressionParser::Parsed ExpressionParser::Filter(ExpressionPtr input) {
  ExpressionPtr node = New(Expression::Kind::kFilter);
  WINNOW_ASSIGN_OR_RETURN(node->name, DottedName());
  WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(input)));
  if (Current().IsOperator("(")) WINNOW_RETURN_IF_ERROR(CallArguments(node.get()));
  return node;
}

ExpressionParser::Parsed ExpressionParser::Test(ExpressionPtr input) {
  ExpressionPtr node = New(Expression::Kind::kTest);
  ExpressionPtr negation = SkipName("not") ? New(Expression::Kind::kNot) : nullptr;
  WINNOW_ASSIGN_OR_RETURN(node->name, DottedName());
  WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(input)));
  const Token& next = Current();
  if (next.IsOperator("(")) {
    WINNOW_RETURN_IF_ERROR(CallArguments(node.get()));
  } else {
    // One argument may follow without parentheses; words that go on with the expression are not it.
    constexpr std::array<std::string_view, 7> kNotArguments = {"else", "or", "and", "if", "is", "in", "not"};
    const bool is_word = next.kind == Token::Kind::kName &&
                         std::find(kNotArguments.begin(), kNotArguments.end(), next.text) == kNotArguments.end();
    if (is_word || next.kind == Token::Kind::kString || next.kind == Token::Kind::kInteger ||
        next.kind == Token::Kind::kFloat || next.IsOperator("[") || next.IsOperator("{")) {
      WINNOW_ASSIGN_OR_RETURN(ExpressionPtr argument, Primary());
      WINNOW_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
      WINNOW_RETURN_IF_ERROR(Adopt(node.get(), std::move(argument)));
    }
  }
  if (negation == nullptr) return node;
  WINNOW_RETURN_IF_ERROR(Adopt(negation.get(), std::move(node)));
  return negation;
}

}  // namespace winnow::chat_template
