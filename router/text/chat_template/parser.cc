#include "router/text/chat_template/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "router/text/chat_template/expression_parser.h"

namespace winnow::chat_template {
namespace {

constexpr int kMaxBlockDepth = 40;
constexpr size_t kMaxSourceBytes = 1 << 20;

using StatementPtr = std::unique_ptr<Statement>;

class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  absl::StatusOr<Body> Run() {
    WINNOW_ASSIGN_OR_RETURN(Body body, Until({}));
    if (in_.Current().kind != Token::Kind::kEnd) {
      return in_.Error(absl::StrCat("unexpected tag '", in_.Ahead().text, "'"));
    }
    return body;
  }

 private:
  // Statements up to a tag of one of these names, whose "{%" is then the current token; with no names, or at a tag that
  // ends some other block, up to whatever is not a statement.
  absl::StatusOr<Body> Until(std::initializer_list<std::string_view> ends) {
    Body body;
    for (;;) {
      const Token& token = in_.Current();
      if (token.kind == Token::Kind::kEnd) break;
      if (token.kind == Token::Kind::kText) {
        StatementPtr text = New(Statement::Kind::kText);
        text->text = in_.Take().text;
        body.push_back(std::move(text));
      } else if (token.kind == Token::Kind::kOutputBegin) {
        StatementPtr output = New(Statement::Kind::kOutput);
        in_.Take();
        WINNOW_ASSIGN_OR_RETURN(output->expression, in_.TupleOrExpression());
        if (in_.Current().kind != Token::Kind::kOutputEnd) return in_.Unexpected("'}}'");
        in_.Take();
        body.push_back(std::move(output));
      } else if (token.kind == Token::Kind::kBlockBegin) {
        const std::string_view tag = in_.Ahead().text;
        if (std::find(ends.begin(), ends.end(), tag) != ends.end() || IsEndTag(tag)) break;
        WINNOW_ASSIGN_OR_RETURN(StatementPtr block, Block());
        body.push_back(std::move(block));
      } else {
        return in_.Unexpected("text or a tag");
      }
    }
    return body;
  }

  static bool IsEndTag(std::string_view tag) { return tag.starts_with("end") || tag == "else" || tag == "elif"; }

  StatementPtr New(Statement::Kind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = in_.Current().line;
    return statement;
  }

  absl::Status EndTag() {
    if (in_.Current().kind != Token::Kind::kBlockEnd) return in_.Unexpected("'%}'");
    in_.Take();
    return absl::OkStatus();
  }

  // "{% name %}" with `opened_at` for the error.
  absl::Status Close(std::string_view name, int opened_at) {
    if (in_.Current().kind != Token::Kind::kBlockBegin || !in_.Ahead().IsName(name)) {
      const std::string found = in_.Current().kind == Token::Kind::kBlockBegin
                                    ? absl::StrCat("'", in_.Ahead().text, "'")
                                    : std::string("the end of the template");
      return in_.Error(
          absl::StrCat("found ", found, " where the block of line ", opened_at, " needs '", AbslSv(name), "'"));
    }
    in_.Take();
    in_.Take();
    return EndTag();
  }

  absl::StatusOr<StatementPtr> Block() {
    if (++depth_ > kMaxBlockDepth) return in_.Error("blocks are nested too deeply");
    const int line = in_.Current().line;
    in_.Take();
    if (in_.Current().kind != Token::Kind::kName) return in_.Unexpected("the name of a tag");
    const std::string tag = in_.Take().text;
    WINNOW_ASSIGN_OR_RETURN(StatementPtr statement, Named(tag, line));
    --depth_;
    return statement;
  }

  absl::StatusOr<StatementPtr> Named(const std::string& tag, int line) {
    if (tag == "if") return If(line);
    if (tag == "for") return For(line);
    if (tag == "set") return Set(line);
    if (tag == "macro") return MacroDefinition(line);
    if (tag == "filter") return Filter(line);
    if (tag == "with") return With(line);
    if (tag == "generation") return Generation(line);
    if (tag == "break" || tag == "continue") {
      StatementPtr statement = New(tag == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue);
      if (loop_depth_ == 0) return in_.Error(absl::StrCat("'", tag, "' outside of a for loop"));
      WINNOW_RETURN_IF_ERROR(EndTag());
      return statement;
    }
    return in_.Error(absl::StrCat("unknown or unsupported tag '", tag, "'"));
  }

  absl::StatusOr<StatementPtr> If(int line) {
    StatementPtr statement = New(Statement::Kind::kIf);
    for (bool more = true; more;) {
      Statement::Branch branch;
      WINNOW_ASSIGN_OR_RETURN(branch.condition, in_.TupleOrExpression());
      WINNOW_RETURN_IF_ERROR(EndTag());
      WINNOW_ASSIGN_OR_RETURN(branch.body, Until({"elif", "else", "endif"}));
      statement->branches.push_back(std::move(branch));
      more = in_.Current().kind == Token::Kind::kBlockBegin && in_.Ahead().IsName("elif");
      if (more) {
        in_.Take();
        in_.Take();
      }
    }
    if (in_.Current().kind == Token::Kind::kBlockBegin && in_.Ahead().IsName("else")) {
      in_.Take();
      in_.Take();
      WINNOW_RETURN_IF_ERROR(EndTag());
      Statement::Branch branch;
      WINNOW_ASSIGN_OR_RETURN(branch.body, Until({"endif"}));
      statement->branches.push_back(std::move(branch));
    }
    WINNOW_RETURN_IF_ERROR(Close("endif", line));
    return statement;
  }

  absl::StatusOr<Target> AssignmentTarget(bool with_attribute) {
    Target target;
    const bool parenthesised = in_.SkipOperator("(");
    WINNOW_ASSIGN_OR_RETURN(std::string name, in_.ExpectName());
    target.names.push_back(std::move(name));
    if (with_attribute && !parenthesised && in_.SkipOperator(".")) {
      WINNOW_ASSIGN_OR_RETURN(target.attribute, in_.ExpectName());
      return target;
    }
    while (in_.SkipOperator(",")) {
      target.unpack = true;
      if (in_.Current().kind != Token::Kind::kName || in_.Current().IsName("in")) break;
      target.names.push_back(in_.Take().text);
    }
    if (parenthesised) WINNOW_RETURN_IF_ERROR(in_.ExpectOperator(")"));
    for (const std::string& each : target.names) {
      if (IsReserved(each)) return in_.Error(absl::StrCat("'", each, "' cannot be assigned to"));
    }
    return target;
  }

  static bool IsReserved(std::string_view name) {
    constexpr std::array<std::string_view, 6> kReserved = {"true", "True", "false", "False", "none", "None"};
    return std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
  }

  absl::StatusOr<StatementPtr> For(int line) {
    StatementPtr statement = New(Statement::Kind::kFor);
    WINNOW_ASSIGN_OR_RETURN(statement->target, AssignmentTarget(/*with_attribute=*/false));
    if (!in_.SkipName("in")) return in_.Unexpected("'in'");
    WINNOW_ASSIGN_OR_RETURN(statement->expression, in_.TupleOrExpressionWithoutIf());
    if (in_.SkipName("if")) {
      WINNOW_ASSIGN_OR_RETURN(statement->condition, in_.Expr());
    }
    if (in_.Current().IsName("recursive")) return in_.Error("recursive loops are not supported");
    WINNOW_RETURN_IF_ERROR(EndTag());
    ++loop_depth_;
    WINNOW_ASSIGN_OR_RETURN(statement->body, Until({"else", "endfor"}));
    --loop_depth_;
    if (in_.Current().kind == Token::Kind::kBlockBegin && in_.Ahead().IsName("else")) {
      in_.Take();
      in_.Take();
      WINNOW_RETURN_IF_ERROR(EndTag());
      WINNOW_ASSIGN_OR_RETURN(statement->otherwise, Until({"endfor"}));
    }
    WINNOW_RETURN_IF_ERROR(Close("endfor", line));
    return statement;
  }

  absl::StatusOr<StatementPtr> Set(int line) {
    StatementPtr statement = New(Statement::Kind::kSet);
    WINNOW_ASSIGN_OR_RETURN(statement->target, AssignmentTarget(/*with_attribute=*/true));
    if (in_.SkipOperator("=")) {
      WINNOW_ASSIGN_OR_RETURN(statement->expression, in_.TupleOrExpression());
      WINNOW_RETURN_IF_ERROR(EndTag());
      return statement;
    }
    statement->kind = Statement::Kind::kSetBlock;
    if (statement->target.unpack) return in_.Error("a set block assigns to one name");
    if (in_.SkipOperator("|")) {
      WINNOW_ASSIGN_OR_RETURN(statement->filters, in_.FilterChain(nullptr));
    }
    WINNOW_RETURN_IF_ERROR(EndTag());
    WINNOW_ASSIGN_OR_RETURN(statement->body, WithoutLoop("endset"));
    WINNOW_RETURN_IF_ERROR(Close("endset", line));
    return statement;
  }

  // A body whose output is captured: break and continue cannot leave it.
  absl::StatusOr<Body> WithoutLoop(std::string_view end) {
    const int loops = std::exchange(loop_depth_, 0);
    WINNOW_ASSIGN_OR_RETURN(Body body, Until({end}));
    loop_depth_ = loops;
    return body;
  }

  absl::StatusOr<StatementPtr> MacroDefinition(int line) {
    StatementPtr statement = New(Statement::Kind::kMacro);
    WINNOW_ASSIGN_OR_RETURN(statement->macro.name, in_.ExpectName());
    WINNOW_RETURN_IF_ERROR(in_.ExpectOperator("("));
    while (!in_.SkipOperator(")")) {
      auto& parameters = statement->macro.parameters;
      if (!parameters.empty()) WINNOW_RETURN_IF_ERROR(in_.ExpectOperator(","));
      WINNOW_ASSIGN_OR_RETURN(std::string name, in_.ExpectName());
      ExpressionPtr fallback;
      if (in_.SkipOperator("=")) {
        WINNOW_ASSIGN_OR_RETURN(fallback, in_.Expr());
      } else if (!parameters.empty() && parameters.back().second != nullptr) {
        return in_.Error("a parameter without a default follows one with a default");
      }
      parameters.emplace_back(std::move(name), std::move(fallback));
    }
    WINNOW_RETURN_IF_ERROR(EndTag());
    WINNOW_ASSIGN_OR_RETURN(statement->macro.body, WithoutLoop("endmacro"));
    WINNOW_RETURN_IF_ERROR(Close("endmacro", line));
    return statement;
  }

  absl::StatusOr<StatementPtr> Filter(int line) {
    StatementPtr statement = New(Statement::Kind::kFilter);
    WINNOW_ASSIGN_OR_RETURN(statement->filters, in_.FilterChain(nullptr));
    WINNOW_RETURN_IF_ERROR(EndTag());
    WINNOW_ASSIGN_OR_RETURN(statement->body, WithoutLoop("endfilter"));
    WINNOW_RETURN_IF_ERROR(Close("endfilter", line));
    return statement;
  }

  absl::StatusOr<StatementPtr> With(int line) {
    StatementPtr statement = New(Statement::Kind::kWith);
    while (in_.Current().kind != Token::Kind::kBlockEnd) {
      if (!statement->assignments.empty()) WINNOW_RETURN_IF_ERROR(in_.ExpectOperator(","));
      WINNOW_ASSIGN_OR_RETURN(std::string name, in_.ExpectName());
      WINNOW_RETURN_IF_ERROR(in_.ExpectOperator("="));
      WINNOW_ASSIGN_OR_RETURN(ExpressionPtr value, in_.Expr());
      statement->assignments.emplace_back(std::move(name), std::move(value));
    }
    WINNOW_RETURN_IF_ERROR(EndTag());
    WINNOW_ASSIGN_OR_RETURN(statement->body, Until({"endwith"}));
    WINNOW_RETURN_IF_ERROR(Close("endwith", line));
    return statement;
  }

  // Marks what the assistant wrote, for training; here it changes nothing.
  absl::StatusOr<StatementPtr> Generation(int line) {
    StatementPtr statement = New(Statement::Kind::kBlock);
    WINNOW_RETURN_IF_ERROR(EndTag());
    WINNOW_ASSIGN_OR_RETURN(statement->body, Until({"endgeneration"}));
    WINNOW_RETURN_IF_ERROR(Close("endgeneration", line));
    return statement;
  }

  ExpressionParser in_;
  int depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

absl::StatusOr<Body> Parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("template of ", source.size(), " bytes, the limit is ", kMaxSourceBytes));
  }
  WINNOW_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return TemplateParser(std::move(tokens)).Run();
}

}  // namespace winnow::chat_template
