#include "common/grammar/regex_parser.h"

#include <optional>
#include <utility>

#include "common/grammar/grammar_text.h"
#include "common/grammar/text_cursor.h"

namespace winnow {
namespace {

using ExprId = Grammar::ExprId;
using Ranges = std::vector<CodePointRange>;

const Ranges kDigits = {{'0', '9'}};
const Ranges kWordCharacters = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpaces = {{'\t', '\r'}, {' ', ' '}};
// What some dialect calls a space: \S must match none of them.
const Ranges kAnySpaces = {{'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},     {0xA0, 0xA0},
                           {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                           {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Ranges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class RegexParser {
 public:
  RegexParser(std::string_view regex, const RegexOptions& options, Grammar& grammar)
      : cursor_(regex), options_(options), grammar_(grammar) {}

  absl::StatusOr<ExprId> Parse() {
    std::vector<ExprId> alternatives;
    do {
      const bool at_start = cursor_.Take("^");
      WINNOW_ASSIGN_OR_RETURN(const ExprId sequence, ParseSequence(0));
      const bool at_end = cursor_.Take("$");
      std::vector<ExprId> parts;
      if (options_.search && !at_start) parts.push_back(AnyText());
      parts.push_back(sequence);
      if (options_.search && !at_end) parts.push_back(AnyText());
      alternatives.push_back(grammar_.Sequence(std::move(parts)));
    } while (cursor_.Take("|"));
    if (!cursor_.at_end()) {
      return cursor_.Error(cursor_.peek() == ')' ? "a \")\" has no \"(\"" : "what follows a \"$\" can never match");
    }
    return grammar_.Choice(std::move(alternatives));
  }

 private:
  ExprId Characters(const Ranges& ranges) {
    if (options_.character) return options_.character(grammar_, ranges);
    if (ranges.size() == 1 && ranges[0].first == ranges[0].last) {
      std::string text;
      AppendUtf8(ranges[0].first, &text);
      return grammar_.Bytes(text);
    }
    return grammar_.Character(ranges);
  }
  ExprId AnyText() { return grammar_.Repeat(Characters(NormalRanges({}, /*negated=*/true)), 0, std::nullopt); }

  absl::StatusOr<ExprId> ParseAlternatives(int depth) {
    if (depth > kMaxGrammarDepth) return cursor_.Error("groups are nested too deeply");
    std::vector<ExprId> alternatives;
    do {
      WINNOW_ASSIGN_OR_RETURN(alternatives.emplace_back(), ParseSequence(depth));
      if (cursor_.peek() == '$') return cursor_.Error("\"$\" is allowed at the end of the expression only, not");
    } while (cursor_.Take("|"));
    return grammar_.Choice(std::move(alternatives));
  }

  absl::StatusOr<ExprId> ParseSequence(int depth) {
    std::vector<ExprId> parts;
    while (!cursor_.at_end() && cursor_.peek() != '|' && cursor_.peek() != ')' && cursor_.peek() != '$') {
      if (grammar_.is_too_large()) return cursor_.Error("the grammar is too large");
      WINNOW_ASSIGN_OR_RETURN(const ExprId item, ParseItem(depth));
      WINNOW_ASSIGN_OR_RETURN(const std::optional<RepeatBounds> bounds, TakeBounds());
      parts.push_back(bounds.has_value() ? grammar_.Repeat(item, bounds->min, bounds->max) : item);
    }
    return grammar_.Sequence(std::move(parts));
  }

  absl::StatusOr<std::optional<RepeatBounds>> TakeBounds() {
    WINNOW_ASSIGN_OR_RETURN(const std::optional<RepeatBounds> bounds, TakeRepeatBounds(cursor_));
    if (!bounds.has_value()) return bounds;
    if (cursor_.peek() == '+') return cursor_.Error("possessive repetitions are not supported,");
    cursor_.Take("?");  // lazy: the same texts
    if (cursor_.peek() == '*' || cursor_.peek() == '+' || cursor_.peek() == '?') {
      return cursor_.Error("a repetition of nothing");
    }
    return bounds;
  }

  absl::StatusOr<ExprId> ParseItem(int depth) {
    switch (cursor_.peek()) {
      case '(':
        return ParseGroup(depth);
      case '[':
        return ParseClass();
      case '.':
        cursor_.Skip(1);
        return Characters(NormalRanges(kLineEnds, /*negated=*/true));
      case '\\': {
        WINNOW_ASSIGN_OR_RETURN(const Ranges ranges, TakeEscape());
        return Characters(ranges);
      }
      case '^':
        return cursor_.Error("\"^\" is allowed at the start of the expression only, not");
      case '*':
      case '+':
      case '?':
        return cursor_.Error("a repetition of nothing");
      default: {
        const char32_t c = cursor_.TakeCharacter();
        return Characters({{c, c}});
      }
    }
  }

  absl::StatusOr<ExprId> ParseGroup(int depth) {
    cursor_.Skip(1);
    if (cursor_.Take("?")) {
      const bool is_named =
          cursor_.Take("P<") || (cursor_.rest().starts_with("<") && !cursor_.rest().starts_with("<=") &&
                                 !cursor_.rest().starts_with("<!") && cursor_.Take("<"));
      if (is_named) {
        cursor_.Skip(std::min(cursor_.rest().find('>'), cursor_.rest().size()));
        if (!cursor_.Take(">")) return cursor_.Error("a group's name lacks its \">\"");
      } else if (!cursor_.Take(":")) {
        return cursor_.Error("look-around, flags and other groups with \"(?\" are not supported,");
      }
    }
    WINNOW_ASSIGN_OR_RETURN(const ExprId inside, ParseAlternatives(depth + 1));
    if (!cursor_.Take(")")) return cursor_.Error("a \")\" is missing");
    return inside;
  }

  absl::StatusOr<ExprId> ParseClass() {
    cursor_.Skip(1);
    const bool negated = cursor_.Take("^");
    Ranges ranges;
    bool is_first = true;
    while (is_first || cursor_.peek() != ']') {
      if (cursor_.at_end()) return cursor_.Error("a class lacks its \"]\"");
      is_first = false;
      WINNOW_ASSIGN_OR_RETURN(const Ranges from, TakeClassItem());
      const bool is_one = from.size() == 1 && from[0].first == from[0].last;
      if (is_one && cursor_.peek() == '-' && !cursor_.rest().starts_with("-]")) {
        cursor_.Skip(1);
        if (cursor_.at_end()) continue;
        WINNOW_ASSIGN_OR_RETURN(const Ranges to, TakeClassItem());
        if (to.size() != 1 || to[0].first != to[0].last || to[0].first < from[0].first) {
          return cursor_.Error("a range of a class has no order");
        }
        ranges.push_back({from[0].first, to[0].first});
      } else {
        ranges.insert(ranges.end(), from.begin(), from.end());
      }
    }
    cursor_.Skip(1);
    return Characters(NormalRanges(std::move(ranges), negated));
  }

  absl::StatusOr<Ranges> TakeClassItem() {
    if (cursor_.peek() == '\\') return TakeEscape();
    const char32_t c = cursor_.TakeCharacter();
    return Ranges{{c, c}};
  }

  absl::StatusOr<Ranges> TakeEscape() {
    cursor_.Skip(1);
    if (cursor_.at_end()) return cursor_.Error("an escape is cut off");
    const char c = cursor_.peek();
    const auto one = [&](char32_t code) {
      cursor_.Skip(1);
      return Ranges{{code, code}};
    };
    switch (c) {
      case 'd':
      case 'D':
        cursor_.Skip(1);
        return NormalRanges(kDigits, c == 'D');
      case 'w':
      case 'W':
        cursor_.Skip(1);
        return NormalRanges(kWordCharacters, c == 'W');
      case 's':
      case 'S':
        cursor_.Skip(1);
        return c == 's' ? kSpaces : NormalRanges(kAnySpaces, /*negated=*/true);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
      case 'u':
        return TakeCode(c);
      default:
        break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
      return cursor_.Error(absl::StrCat("\"\\", std::string(1, c), "\" is not supported,"));
    }
    const char32_t literal = cursor_.TakeCharacter();
    return Ranges{{literal, literal}};
  }

  absl::StatusOr<Ranges> TakeCode(char kind) {
    cursor_.Skip(1);
    std::optional<char32_t> code;
    if (kind == 'u' && cursor_.Take("{")) {
      const size_t digits = cursor_.rest().find('}');
      if (digits >= 1 && digits <= 6) code = cursor_.TakeHex(static_cast<int>(digits));
      if (code.has_value()) cursor_.Skip(1);
    } else {
      code = cursor_.TakeHex(kind == 'x' ? 2 : 4);
    }
    if (!code.has_value() || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF)) {
      return cursor_.Error("an escape is not a character's code");
    }
    return Ranges{{*code, *code}};
  }

  TextCursor cursor_;
  const RegexOptions& options_;
  Grammar& grammar_;
};

}  // namespace

absl::StatusOr<ExprId> AddRegex(std::string_view regex, const RegexOptions& options, Grammar& grammar) {
  if (const size_t at = FindInvalidUtf8(regex); at != regex.npos) {
    return absl::InvalidArgumentError(absl::StrCat("not UTF-8 at byte ", at));
  }
  return RegexParser(regex, options, grammar).Parse();
}

}  // namespace winnow
