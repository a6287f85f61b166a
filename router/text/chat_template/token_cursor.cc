#include "router/text/chat_template/token_cursor.h"

namespace winnow::chat_template {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kText:
      return "text";
    case Token::Kind::kOutputBegin:
      return "'{{'";
    case Token::Kind::kOutputEnd:
      return "'}}'";
    case Token::Kind::kBlockBegin:
      return "'{%'";
    case Token::Kind::kBlockEnd:
      return "'%}'";
    case Token::Kind::kString:
      return "a string";
    case Token::Kind::kEnd:
      return "the end of the template";
    default:
      return absl::StrCat("'", token.text, "'");
  }
}

}  // namespace

Token TokenCursor::Take() {
  Token token = Current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenCursor::SkipName(std::string_view name) {
  if (!Current().IsName(name)) return false;
  Take();
  return true;
}

bool TokenCursor::SkipOperator(std::string_view op) {
  if (!Current().IsOperator(op)) return false;
  Take();
  return true;
}

absl::Status TokenCursor::ExpectOperator(std::string_view op) {
  return SkipOperator(op) ? absl::OkStatus() : Unexpected(absl::StrCat("'", AbslSv(op), "'"));
}

absl::StatusOr<std::string> TokenCursor::ExpectName() {
  if (Current().kind != Token::Kind::kName) return Unexpected("a name");
  return Take().text;
}

absl::Status TokenCursor::Error(std::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("line ", Current().line, ": ", AbslSv(what)));
}

absl::Status TokenCursor::Unexpected(std::string_view expected) const {
  return Error(absl::StrCat("unexpected ", Describe(Current()), ", expected ", AbslSv(expected)));
}

}  // namespace winnow::chat_template
