#include <map>

#include "absl/strings/escaping.h"
#include "common/grammar/grammar_text.h"
#include "common/grammar/text_cursor.h"

namespace winnow {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GrammarParser {
 public:
  explicit GrammarParser(std::string_view text) : cursor_(text) {}

  absl::StatusOr<Grammar> Parse() {
    SkipSpace();
    while (!cursor_.at_end()) {
      WINNOW_RETURN_IF_ERROR(ParseRule());
      if (grammar_.is_too_large()) return absl::InvalidArgumentError("the grammar is too large");
    }
    for (const auto& [name, rule] : rules_) {
      if (!grammar_.rules()[rule].body.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("rule \"", name, "\" is used but not defined"));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return absl::InvalidArgumentError("there is no rule \"root\"");
    grammar_.set_root(root->second);
    return std::move(grammar_);
  }

 private:
  using ExprId = Grammar::ExprId;

  void SkipSpace() {
    while (!cursor_.at_end()) {
      const char c = cursor_.peek();
      if (c == '#') {
        cursor_.Skip(std::min(cursor_.rest().find('\n'), cursor_.rest().size()));
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        cursor_.Skip(1);
      } else {
        return;
      }
    }
  }

  std::string_view PeekName() const {
    size_t length = 0;
    while (length < cursor_.rest().size() && IsNameByte(cursor_.rest()[length])) ++length;
    return cursor_.rest().substr(0, length);
  }

  // A name with "::=" behind it.
  bool AtRule() const {
    const std::string_view name = PeekName();
    if (name.empty()) return false;
    std::string_view behind = cursor_.rest().substr(name.size());
    behind.remove_prefix(std::min(behind.find_first_not_of(" \t\r\n"), behind.size()));
    return behind.starts_with("::=");
  }

  Grammar::RuleId RuleNamed(std::string_view name) {
    const auto [entry, is_new] = rules_.try_emplace(std::string(name), 0);
    if (is_new) entry->second = grammar_.AddRule(std::string(name));
    return entry->second;
  }

  absl::Status ParseRule() {
    if (!AtRule()) return cursor_.Error("expected a rule, `name ::= ...`,");
    const std::string name(PeekName());
    const Grammar::RuleId rule = RuleNamed(name);
    if (grammar_.rules()[rule].body.has_value()) {
      return cursor_.Error(absl::StrCat("rule \"", name, "\" is defined twice, again"));
    }
    cursor_.Skip(name.size());
    SkipSpace();
    cursor_.Skip(3);
    WINNOW_ASSIGN_OR_RETURN(const ExprId body, ParseAlternatives(0));
    if (!cursor_.at_end() && !AtRule()) return cursor_.Error(absl::StrCat("unexpected text in rule \"", name, "\""));
    grammar_.Define(rule, body);
    return absl::OkStatus();
  }

  absl::StatusOr<ExprId> ParseAlternatives(int depth) {
    if (depth > kMaxGrammarDepth) return cursor_.Error("parentheses are nested too deeply");
    std::vector<ExprId> alternatives;
    do {
      WINNOW_ASSIGN_OR_RETURN(alternatives.emplace_back(), ParseSequence(depth));
    } while (cursor_.Take("|"));
    return grammar_.Choice(std::move(alternatives));
  }

  absl::StatusOr<ExprId> ParseSequence(int depth) {
    std::vector<ExprId> parts;
    while (true) {
      SkipSpace();
      if (cursor_.at_end() || cursor_.peek() == '|' || cursor_.peek() == ')' || AtRule()) break;
      WINNOW_ASSIGN_OR_RETURN(const ExprId item, ParseItem(depth));
      SkipSpace();
      WINNOW_ASSIGN_OR_RETURN(const std::optional<RepeatBounds> bounds, TakeRepeatBounds(cursor_));
      parts.push_back(bounds.has_value() ? grammar_.Repeat(item, bounds->min, bounds->max) : item);
    }
    return grammar_.Sequence(std::move(parts));
  }

  absl::StatusOr<ExprId> ParseItem(int depth) {
    if (cursor_.Take("\"")) return ParseText();
    if (cursor_.Take("[")) return ParseClass();
    if (cursor_.Take(".")) return grammar_.Character({}, /*negated=*/true);
    if (cursor_.Take("(")) {
      WINNOW_ASSIGN_OR_RETURN(const ExprId inside, ParseAlternatives(depth + 1));
      if (!cursor_.Take(")")) return cursor_.Error("a \")\" is missing");
      return inside;
    }
    const std::string_view name = PeekName();
    if (name.empty())
      return cursor_.Error(absl::StrCat("unexpected \"", absl::CEscape(AbslSv(cursor_.rest().substr(0, 1))), "\""));
    const Grammar::RuleId rule = RuleNamed(name);
    cursor_.Skip(name.size());
    return grammar_.Call(rule);
  }

  absl::StatusOr<ExprId> ParseText() {
    std::string text;
    while (!cursor_.Take("\"")) {
      if (cursor_.at_end()) return cursor_.Error("a text lacks its closing quote");
      WINNOW_ASSIGN_OR_RETURN(const char32_t character, TakeCharacter());
      AppendUtf8(character, &text);
    }
    return grammar_.Bytes(text);
  }

  absl::StatusOr<ExprId> ParseClass() {
    const bool negated = cursor_.Take("^");
    std::vector<CodePointRange> ranges;
    while (!cursor_.Take("]")) {
      if (cursor_.at_end()) return cursor_.Error("a class lacks its \"]\"");
      WINNOW_ASSIGN_OR_RETURN(const char32_t first, TakeCharacter());
      char32_t last = first;
      if (cursor_.peek() == '-' && !cursor_.rest().starts_with("-]")) {
        cursor_.Skip(1);
        if (cursor_.at_end()) continue;
        WINNOW_ASSIGN_OR_RETURN(last, TakeCharacter());
        if (last < first) return cursor_.Error("a range of a class is the wrong way round");
      }
      ranges.push_back({first, last});
    }
    return grammar_.Character(std::move(ranges), negated);
  }

  absl::StatusOr<char32_t> TakeCharacter() {
    if (!cursor_.Take("\\")) return cursor_.TakeCharacter();
    if (cursor_.at_end()) return cursor_.Error("an escape is cut off");
    std::optional<char32_t> code;
    switch (const char c = cursor_.peek(); c) {
      case 'n':
      case 'r':
      case 't':
        cursor_.Skip(1);
        return c == 'n' ? '\n' : c == 'r' ? '\r' : '\t';
      case 'x':
      case 'u':
      case 'U':
        cursor_.Skip(1);
        code = cursor_.TakeHex(c == 'x' ? 2 : c == 'u' ? 4 : 8);
        if (!code.has_value() || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF)) {
          return cursor_.Error("an escape is not a character's code");
        }
        return *code;
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        cursor_.Skip(1);
        return c;
      default:
        return cursor_.Error("unknown escape");
    }
  }

  TextCursor cursor_;
  Grammar grammar_;
  std::map<std::string, Grammar::RuleId> rules_;
};

}  // namespace

absl::StatusOr<Grammar> ParseGrammarText(std::string_view text) {
  if (text.size() > kMaxGrammarTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the grammar has ", text.size(), " bytes, at most ", kMaxGrammarTextBytes));
  }
  if (const size_t at = FindInvalidUtf8(text); at != text.npos) {
    return absl::InvalidArgumentError(absl::StrCat("the grammar is not UTF-8 at byte ", at));
  }
  return GrammarParser(text).Parse();
}

}  // namespace winnow
