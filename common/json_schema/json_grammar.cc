#include "common/json_schema/json_grammar.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr uint32_t kMaxIndentation = 32;

using ExprId = Grammar::ExprId;
using Json = nlohmann::ordered_json;

bool NeedsEscape(char32_t c) {
  return c < 0x20 || c == '"' || c == '\\';
}

// One that needs an escape, as it is usually written.
std::string Escaped(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return absl::StrFormat("\\u%04x", static_cast<uint32_t>(c));
  }
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, &at);
    if (NeedsEscape(c)) {
      quoted += Escaped(c);
    } else {
      AppendUtf8(c, &quoted);
    }
  }
  return quoted + '"';
}

}  // namespace

ExprId JsonGrammar::RuleOnce(std::optional<Grammar::RuleId>& rule, std::string_view name,
                             ExprId (JsonGrammar::*body)()) {
  if (!rule.has_value()) {
    rule = grammar_.AddRule(std::string(name));
    grammar_.Define(*rule, (this->*body)());
  }
  return grammar_.Call(*rule);
}

ExprId JsonGrammar::Space() {
  return compact_ ? grammar_.Empty() : RuleOnce(space_, "space", &JsonGrammar::SpaceBody);
}

ExprId JsonGrammar::SpaceBody() {
  const ExprId blank = grammar_.Character({{' ', ' '}, {'\t', '\t'}});
  return grammar_.Choice({grammar_.Empty(), grammar_.Bytes(" "),
                          grammar_.Sequence({grammar_.Bytes("\n"), grammar_.Repeat(blank, 0, kMaxIndentation)})});
}

ExprId JsonGrammar::Enclosed(std::string_view open, ExprId inside, std::string_view close) {
  const ExprId after = inside == grammar_.Empty() ? grammar_.Empty() : Space();
  return grammar_.Sequence({grammar_.Bytes(open), Space(), inside, after, grammar_.Bytes(close)});
}

ExprId JsonGrammar::Member(ExprId key, ExprId value) {
  return grammar_.Sequence({key, grammar_.Bytes(":"), Space(), value});
}

ExprId JsonGrammar::Key(std::string_view name) {
  return grammar_.Bytes(Quoted(name));
}

ExprId JsonGrammar::StringCharacter() {
  const auto character = [&](std::vector<CodePointRange> ranges) { return grammar_.Character(std::move(ranges)); };
  const std::vector<CodePointRange> hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  const auto hex_digits = [&](uint32_t count) { return grammar_.Repeat(grammar_.Character(hex), count, count); };
  // Escaped surrogates come in pairs.
  const ExprId code = grammar_.Choice(
      {grammar_.Sequence({character({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), hex_digits(3)}),
       grammar_.Sequence({character({{'D', 'D'}, {'d', 'd'}}), character({{'0', '7'}}), hex_digits(2)}),
       grammar_.Sequence({character({{'D', 'D'}, {'d', 'd'}}), character({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}),
                          hex_digits(2), grammar_.Bytes("\\u"), character({{'D', 'D'}, {'d', 'd'}}),
                          character({{'C', 'F'}, {'c', 'f'}}), hex_digits(2)})});
  const ExprId escape = grammar_.Sequence(
      {grammar_.Bytes("\\"),
       grammar_.Choice(
           {character(
                {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}}),
            grammar_.Sequence({grammar_.Bytes("u"), code})})});
  const ExprId plain = grammar_.Character({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}, /*negated=*/true);
  return grammar_.Choice({plain, escape});
}

ExprId JsonGrammar::String() {
  return RuleOnce(string_, "string", &JsonGrammar::StringBody);
}

ExprId JsonGrammar::StringBody() {
  return String(0, std::nullopt);
}

ExprId JsonGrammar::String(uint32_t min, std::optional<uint32_t> max) {
  return grammar_.Sequence({grammar_.Bytes("\""), grammar_.Repeat(StringCharacter(), min, max), grammar_.Bytes("\"")});
}

ExprId JsonGrammar::Integer() {
  return RuleOnce(integer_, "integer", &JsonGrammar::IntegerBody);
}

ExprId JsonGrammar::IntegerBody() {
  const ExprId digits = grammar_.Repeat(grammar_.Character({{'0', '9'}}), 0, std::nullopt);
  return grammar_.Sequence(
      {grammar_.Optional(grammar_.Bytes("-")),
       grammar_.Choice({grammar_.Bytes("0"), grammar_.Sequence({grammar_.Character({{'1', '9'}}), digits})})});
}

ExprId JsonGrammar::Number() {
  return RuleOnce(number_, "number", &JsonGrammar::NumberBody);
}

ExprId JsonGrammar::NumberBody() {
  const ExprId digits = grammar_.Repeat(grammar_.Character({{'0', '9'}}), 1, std::nullopt);
  const ExprId fraction = grammar_.Sequence({grammar_.Bytes("."), digits});
  const ExprId exponent = grammar_.Sequence({grammar_.Character({{'E', 'E'}, {'e', 'e'}}),
                                             grammar_.Optional(grammar_.Character({{'+', '+'}, {'-', '-'}})), digits});
  return grammar_.Sequence({IntegerBody(), grammar_.Optional(fraction), grammar_.Optional(exponent)});
}

ExprId JsonGrammar::Value() {
  return RuleOnce(value_, "value", &JsonGrammar::ValueBody);
}

ExprId JsonGrammar::ValueBody() {
  return grammar_.Choice({String(), Number(), AnyObject(), AnyArray(), Boolean(), Null()});
}

ExprId JsonGrammar::AnyObject() {
  return RuleOnce(object_, "object", &JsonGrammar::AnyObjectBody);
}

ExprId JsonGrammar::AnyObjectBody() {
  const ExprId member = Member(String(), Value());
  const ExprId more = grammar_.Repeat(grammar_.Sequence({Comma(), member}), 0, std::nullopt);
  return grammar_.Choice({EmptyObject(), Object(grammar_.Sequence({member, more}))});
}

ExprId JsonGrammar::AnyArray() {
  return RuleOnce(array_, "array", &JsonGrammar::AnyArrayBody);
}

ExprId JsonGrammar::AnyArrayBody() {
  const ExprId more = grammar_.Repeat(grammar_.Sequence({Comma(), Value()}), 0, std::nullopt);
  return grammar_.Choice({EmptyArray(), Array(grammar_.Sequence({Value(), more}))});
}

ExprId JsonGrammar::Constant(const Json& value) {
  if (value.is_string()) return Key(value.get_ref<const std::string&>());
  if (!value.is_structured()) return grammar_.Bytes(value.dump());
  if (value.empty()) return value.is_object() ? EmptyObject() : EmptyArray();
  std::vector<ExprId> parts;
  for (const auto& [name, element] : value.items()) {
    if (!parts.empty()) parts.push_back(Comma());
    parts.push_back(value.is_object() ? Member(Key(name), Constant(element)) : Constant(element));
  }
  const ExprId inside = grammar_.Sequence(std::move(parts));
  return value.is_object() ? Object(inside) : Array(inside);
}

ExprId JsonGrammar::Character(const std::vector<CodePointRange>& ranges) {
  std::vector<ExprId> parts;
  // Outside of these ranges, or one that needs an escape: not written as it is.
  std::vector<CodePointRange> others = NormalRanges(ranges, /*negated=*/true);
  others.insert(others.end(), {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  if (std::vector<CodePointRange> plain = NormalRanges(std::move(others), /*negated=*/true); !plain.empty()) {
    parts.push_back(grammar_.Character(std::move(plain)));
  }
  for (const CodePointRange& range : ranges) {
    for (char32_t c = range.first; c <= std::min<char32_t>(range.last, '\\'); ++c) {
      if (NeedsEscape(c)) parts.push_back(grammar_.Bytes(Escaped(c)));
    }
  }
  return grammar_.Choice(std::move(parts));
}

ExprId JsonGrammar::KeyOtherThan(const std::vector<std::string>& names) {
  const ExprId any = Character(NormalRanges({}, /*negated=*/true));
  const ExprId rest = grammar_.Sequence({grammar_.Repeat(any, 0, std::nullopt), grammar_.Bytes("\"")});
  if (names.empty()) return grammar_.Sequence({grammar_.Bytes("\""), rest});
  // A trie of the names; each node becomes a rule of what may follow it, with the closing quote.
  struct Node {
    std::map<char32_t, size_t> children;
    bool is_name = false;
  };
  std::vector<Node> nodes(1);
  for (const std::string& name : names) {
    size_t node = 0;
    for (size_t at = 0; at < name.size();) {
      const auto [child, is_new] = nodes[node].children.try_emplace(NextCodePoint(name, &at), nodes.size());
      node = child->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[node].is_name = true;
  }
  const Grammar::RuleId rest_rule = grammar_.AddRule("key-rest", rest);
  std::vector<ExprId> behind(nodes.size());
  // Children come behind their parents.
  for (size_t i = nodes.size(); i-- > 0;) {
    const Node& node = nodes[i];
    std::vector<ExprId> parts;
    std::vector<CodePointRange> followed;
    for (const auto& [c, child] : node.children) {
      followed.push_back({c, c});
      parts.push_back(grammar_.Sequence({Character({{c, c}}), behind[child]}));
    }
    parts.push_back(
        grammar_.Sequence({Character(NormalRanges(std::move(followed), /*negated=*/true)), grammar_.Call(rest_rule)}));
    if (!node.is_name) parts.push_back(grammar_.Bytes("\""));
    behind[i] = grammar_.Call(grammar_.AddRule("key", grammar_.Choice(std::move(parts))));
  }
  return grammar_.Sequence({grammar_.Bytes("\""), behind[0]});
}

}  // namespace winnow
