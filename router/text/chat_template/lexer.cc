#include "router/text/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace winnow::chat_template {
namespace {

bool IsSpace(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeNewlines(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < source_.size()) {
      const size_t tag = FindTag();
      EmitText(tag);
      if (tag == source_.npos) break;
      WINNOW_RETURN_IF_ERROR(Tag());
    }
    Emit(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", AbslSv(what)));
  }
  std::string_view Rest() const { return std::string_view(source_).substr(pos_); }
  char Peek(size_t ahead = 0) const { return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0'; }
  void Advance(size_t count) {
    for (; count > 0; --count) line_ += source_[pos_++] == '\n';
  }
  void SkipSpace() {
    while (pos_ < source_.size() && IsSpace(source_[pos_])) Advance(1);
  }
  void Emit(Token::Kind kind, std::string text) {
    tokens_.push_back({.kind = kind, .text = std::move(text), .line = line_});
  }

  size_t FindTag() const {
    for (size_t at = source_.find('{', pos_); at != source_.npos; at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return source_.npos;
  }

  // Emits the text up to the tag at `tag` (npos: to the end) and moves there.
  void EmitText(size_t tag) {
    const size_t end = tag == source_.npos ? source_.size() : tag;
    std::string_view text = std::string_view(source_).substr(pos_, end - pos_);
    if (tag != source_.npos) text = TrimBeforeTag(text, source_[tag + 1] != '{', tag + 2);
    if (!text.empty()) Emit(Token::Kind::kText, std::string(text));
    Advance(end - pos_);
  }

  // `sign_at`: where "-" or "+" would stand.
  std::string_view TrimBeforeTag(std::string_view text, bool lstrip, size_t sign_at) const {
    const char sign = sign_at < source_.size() ? source_[sign_at] : '\0';
    if (sign == '-') {
      while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
    } else if (sign != '+' && lstrip) {
      const size_t newline = text.rfind('\n');
      if (newline == text.npos && !line_starting_) return text;
      const size_t line_begin = newline == text.npos ? 0 : newline + 1;
      if (std::all_of(text.begin() + static_cast<ptrdiff_t>(line_begin), text.end(), IsSpace)) {
        text = text.substr(0, line_begin);
      }
    }
    return text;
  }

  absl::Status Tag() {
    const char type = Peek(1);
    if (type == '#') return Comment();
    if (type == '%' && AtRawBegin()) return Raw();
    Emit(type == '{' ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, "");
    Advance(2);
    if (Peek() == '-' || Peek() == '+') Advance(1);
    return Inside(/*output=*/type == '{');
  }

  absl::Status Comment() {
    Advance(2);
    const size_t end = source_.find("#}", pos_);
    if (end == source_.npos) return Error("comment without #}");
    const char sign = end > pos_ ? source_[end - 1] : '\0';
    Advance(end + 2 - pos_);
    AfterTag(sign, /*trim_newline=*/true);
    return absl::OkStatus();
  }

  void AfterTag(char sign, bool trim_newline) {
    const size_t begin = pos_;
    if (sign == '-') {
      SkipSpace();
    } else if (trim_newline && sign != '+' && Peek() == '\n') {
      Advance(1);
    }
    line_starting_ = pos_ > begin && source_[pos_ - 1] == '\n';
  }

  // At "{%": whether "raw" follows; *end is behind the tag, *sign what stands before "%}".
  bool AtRawTag(size_t at, std::string_view keyword, size_t* end, char* sign) const {
    size_t i = at + 2;
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
    while (i < source_.size() && IsSpace(source_[i])) ++i;
    if (source_.compare(i, keyword.size(), keyword) != 0) return false;
    i += keyword.size();
    while (i < source_.size() && IsSpace(source_[i])) ++i;
    *sign = '\0';
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) *sign = source_[i++];
    if (source_.compare(i, 2, "%}") != 0) return false;
    *end = i + 2;
    return true;
  }
  bool AtRawBegin() const {
    size_t end;
    char sign;
    return AtRawTag(pos_, "raw", &end, &sign);
  }

  absl::Status Raw() {
    size_t end = 0;
    char sign = '\0';
    AtRawTag(pos_, "raw", &end, &sign);
    Advance(end - pos_);
    AfterTag(sign, /*trim_newline=*/false);
    for (size_t at = source_.find("{%", pos_); at != source_.npos; at = source_.find("{%", at + 2)) {
      if (!AtRawTag(at, "endraw", &end, &sign)) continue;
      const std::string_view text =
          TrimBeforeTag(std::string_view(source_).substr(pos_, at - pos_), /*lstrip=*/true, at + 2);
      if (!text.empty()) Emit(Token::Kind::kText, std::string(text));
      Advance(end - pos_);
      AfterTag(sign, /*trim_newline=*/true);
      return absl::OkStatus();
    }
    return Error("raw block without endraw");
  }

  absl::Status Inside(bool output) {
    const std::string_view close = output ? "}}" : "%}";
    std::string brackets;  // open ones
    for (;;) {
      SkipSpace();
      if (pos_ >= source_.size()) return Error(output ? "expression without }}" : "block without %}");
      if (brackets.empty()) {
        const bool sign = (Peek() == '-' || Peek() == '+') && Rest().substr(1).starts_with(close);
        if (sign || Rest().starts_with(close)) {
          Emit(output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "");
          const char mark = sign ? Peek() : '\0';
          Advance(close.size() + (sign ? 1 : 0));
          AfterTag(mark, /*trim_newline=*/!output);
          return absl::OkStatus();
        }
      }
      WINNOW_RETURN_IF_ERROR(One(&brackets));
    }
  }

  absl::Status One(std::string* brackets) {
    const char c = Peek();
    if (c == '"' || c == '\'') return StringLiteral();
    if (IsDigit(c)) return Number();
    if (const size_t bytes = NameBytes(); bytes > 0) {
      Emit(Token::Kind::kName, std::string(Rest().substr(0, bytes)));
      Advance(bytes);
      return absl::OkStatus();
    }
    constexpr std::array<std::string_view, 6> kPairs = {"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view pair : kPairs) {
      if (Rest().starts_with(pair)) return Op(2);
    }
    if (std::string_view("([{").find(c) != std::string_view::npos) {
      brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      return Op(1);
    }
    if (std::string_view(")]}").find(c) != std::string_view::npos) {
      if (brackets->empty() || brackets->back() != c)
        return Error(absl::StrCat("unexpected '", std::string(1, c), "'"));
      brackets->pop_back();
      return Op(1);
    }
    if (std::string_view("+-*/%~<>=.:|,;").find(c) != std::string_view::npos) return Op(1);
    return Error(absl::StrCat("unexpected character '",
                              AbslSv(Rest().substr(0, Utf8SequenceBytes(static_cast<unsigned char>(c)))), "'"));
  }

  absl::Status Op(size_t bytes) {
    Emit(Token::Kind::kOperator, std::string(Rest().substr(0, bytes)));
    Advance(bytes);
    return absl::OkStatus();
  }

  size_t NameBytes() const {
    const std::string_view rest = Rest();
    size_t end = 0;
    for (size_t pos = 0; pos < rest.size(); end = pos) {
      const char32_t c = NextCodePoint(rest, &pos);
      if (!(c == '_' || IsWordCharacter(c))) break;
    }
    return end;
  }

  absl::Status Number() {
    std::string digits;
    size_t i = 0;
    const auto digits_run = [&] {
      for (; IsDigit(Peek(i)) || (Peek(i) == '_' && IsDigit(Peek(i + 1))); ++i) {
        if (Peek(i) != '_') digits.push_back(Peek(i));
      }
    };
    digits_run();
    bool is_float = false;
    if (Peek(i) == '.' && IsDigit(Peek(i + 1))) {
      is_float = true;
      digits.push_back('.');
      ++i;
      digits_run();
    }
    if (Peek(i) == 'e' || Peek(i) == 'E') {
      const size_t sign = Peek(i + 1) == '+' || Peek(i + 1) == '-' ? 1 : 0;
      if (IsDigit(Peek(i + 1 + sign))) {
        is_float = true;
        digits.push_back('e');
        if (Peek(i + 1) == '-') digits.push_back('-');
        i += 1 + sign;
        digits_run();
      }
    }
    Token token{.kind = is_float ? Token::Kind::kFloat : Token::Kind::kInteger, .text = digits, .line = line_};
    const char* end = digits.data() + digits.size();
    const auto result = is_float ? std::from_chars(digits.data(), end, token.number)
                                 : std::from_chars(digits.data(), end, token.integer);
    if (result.ec != std::errc() || result.ptr != end)
      return Error(absl::StrCat("number ", digits, " is out of range"));
    tokens_.push_back(std::move(token));
    Advance(i);
    return absl::OkStatus();
  }

  absl::Status StringLiteral() {
    const char quote = Peek();
    const int line = line_;
    std::string text;
    size_t i = 1;
    for (; pos_ + i < source_.size() && Peek(i) != quote; ++i) {
      if (Peek(i) != '\\') {
        text.push_back(Peek(i));
        continue;
      }
      ++i;
      switch (Peek(i)) {
        case 'n':
          text.push_back('\n');
          break;
        case 't':
          text.push_back('\t');
          break;
        case 'r':
          text.push_back('\r');
          break;
        case 'a':
          text.push_back('\a');
          break;
        case 'b':
          text.push_back('\b');
          break;
        case 'f':
          text.push_back('\f');
          break;
        case 'v':
          text.push_back('\v');
          break;
        case '0':
          text.push_back('\0');
          break;
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          text.push_back(Peek(i));
          break;
        case 'x':
        case 'u':
        case 'U': {
          const size_t digits = Peek(i) == 'x' ? 2 : Peek(i) == 'u' ? 4 : 8;
          uint32_t code_point = 0;
          const std::string_view hex = Rest().substr(std::min(i + 1, Rest().size()), digits);
          const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), code_point, 16);
          const bool scalar = code_point < 0xD800 || (code_point > 0xDFFF && code_point <= 0x10FFFF);
          if (hex.size() != digits || result.ptr != hex.data() + hex.size() || !scalar) {
            return Error("bad escape in a string");
          }
          AppendUtf8(code_point, &text);
          i += digits;
          break;
        }
        default:  // an unknown escape stays as it is
          text.push_back('\\');
          if (pos_ + i < source_.size()) text.push_back(Peek(i));
      }
    }
    if (pos_ + i >= source_.size()) return Error("string without its closing quote");
    Advance(i + 1);
    tokens_.push_back({.kind = Token::Kind::kString, .text = std::move(text), .line = line});
    return absl::OkStatus();
  }

  const std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the text after the last tag starts a line
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  if (const size_t at = FindInvalidUtf8(source); at != source.npos) {
    return absl::InvalidArgumentError(absl::StrCat("not UTF-8 at byte ", at));
  }
  return Lexer(source).Run();
}

}  // namespace winnow::chat_template
