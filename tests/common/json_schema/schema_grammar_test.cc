#include "common/json_schema/schema_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/grammar/automaton.h"
#include "common/grammar/grammar_states.h"
#include "common/grammar/grammar_text.h"
#include "common/json_schema/number_range.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

class TextMatcher {
 public:
  explicit TextMatcher(Automaton automaton) : automaton_(std::move(automaton)), states_(automaton_) {}

  bool Matches(std::string_view text) {
    GrammarStates::StateId state = states_.Start();
    for (const char c : text) state = states_.Next(state, static_cast<uint8_t>(c));
    return states_.accepts(state);
  }

 private:
  const Automaton automaton_;
  GrammarStates states_;
};

absl::StatusOr<Automaton> Compile(std::string_view schema, const SchemaOptions& options) {
  Grammar grammar;
  WINNOW_ASSIGN_OR_RETURN(const Grammar::ExprId body, AddJsonSchema(Json::parse(schema), options, grammar));
  grammar.set_root(grammar.AddRule("root", body));
  // By way of its text, as it travels.
  WINNOW_ASSIGN_OR_RETURN(const std::string text, GrammarText(grammar));
  WINNOW_ASSIGN_OR_RETURN(const Grammar again, ParseGrammarText(text));
  return Automaton::Compile(again);
}

void ExpectMatches(std::string_view schema, const std::vector<std::string>& valid,
                   const std::vector<std::string>& invalid, const SchemaOptions& options = {}) {
  absl::StatusOr<Automaton> automaton = Compile(schema, options);
  ASSERT_TRUE(automaton.ok()) << schema << ": " << automaton.status();
  TextMatcher matcher(*std::move(automaton));
  for (const std::string& text : valid) EXPECT_TRUE(matcher.Matches(text)) << schema << " should have " << text;
  for (const std::string& text : invalid) EXPECT_FALSE(matcher.Matches(text)) << schema << " should not have " << text;
}

std::string ErrorOf(std::string_view schema) {
  const absl::Status status = Compile(schema, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << schema << ": " << status;
  return std::string(status.message());
}

TEST(SchemaGrammar, HasTheTypes) {
  ExpectMatches(R"({"type": "integer"})", {"0", "-12", "907"}, {"01", "1.5", "+1", "", "\"1\""});
  ExpectMatches(R"({"type": "number"})", {"0", "-1.25", "3e8", "1E-2"}, {".5", "1.", "NaN"});
  ExpectMatches(R"({"type": "boolean"})", {"true", "false"}, {"True", "null"});
  ExpectMatches(R"({"type": ["null", "boolean"]})", {"null", "true"}, {"0"});
  ExpectMatches(R"({"type": "string"})", {R"("")", R"("a\"b\\\n\u00e9\ud83d\ude00é")"},
                {R"("\ud83d")", R"("\x")", "\"\n\"", "\"a"});
  ExpectMatches("true", {R"({"a": [1, {}], "b": null})", "[]", "3"}, {"", "{", "[1,]"});
  ExpectMatches("{}", {R"([true])"}, {"tru"});
}

TEST(SchemaGrammar, HasWhiteSpaceWhereJsonIsUsuallyWrittenWithIt) {
  const std::string pretty = Json::parse(R"({"a": {"b": [1, 2]}, "c": []})").dump(2);
  ExpectMatches(R"({"type": "object"})", {R"({"a":1})", R"({"a": 1})", pretty}, {R"({  "a":1})", R"({"a" :1})"});
  ExpectMatches(R"({"type": "object"})", {R"({"a":1,"b":[1,2]})"}, {R"({"a": 1})", R"({"a":[1, 2]})"},
                {.compact = true});
}

TEST(SchemaGrammar, HasPropertiesInTheOrderOfTheSchema) {
  constexpr std::string_view kSchema =
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"},
    "c": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false})";
  ExpectMatches(
      kSchema, {R"({"b":null})", R"({"a":1,"b":null})", R"({"b":null,"c":true})", R"({"a": 1, "b": null, "c": true})"},
      {"{}", R"({"a":1})", R"({"c":true,"b":null})", R"({"b":null,})", R"({"b":null,"d":1})", R"({,"b":null})"});
}

TEST(SchemaGrammar, HasFurtherPropertiesUnlessTheSchemaIsClosed) {
  constexpr std::string_view kSchema = R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab\"": {}}})";
  ExpectMatches(
      kSchema,
      {"{}", R"({"a":1})", R"({"a":1,"b":[]})", R"({"x":"y"})", R"({"ab":1})", R"({"a":1,"ab\"c":1})", R"({"":0})"},
      {R"({"a":"x"})", R"({"b":1,"a":"x"})", R"({"b":1,"ab\"":1})"});
  ExpectMatches(kSchema, {"{}", R"({"a":1})"}, {R"({"b":1})"}, {.closed = true});
  ExpectMatches(R"({"type": "object", "additionalProperties": {"type": "integer"}, "required": ["n"]})",
                {R"({"n":1})", R"({"n":1,"m":2})"}, {"{}", R"({"m":2})", R"({"n":"1"})", R"({"n":1,"n":2})"});
}

TEST(SchemaGrammar, HasArrays) {
  ExpectMatches(R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1]", "[1, 2,3]"}, {"[\"a\"]", "[1,]"});
  ExpectMatches(R"({"items": {"type": "integer"}, "minItems": 2, "maxItems": 3})", {"[1,2]", "[1,2,3]"},
                {"[]", "[1]", "[1,2,3,4]"});
  ExpectMatches(R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false})",
                {"[]", "[1]", "[1,null]"}, {"[null]", "[1,null,2]"});
  ExpectMatches(
      R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "boolean"}, "minItems": 3, "maxItems": 4})",
      {"[1,null,true]", "[1,null,true,false]"}, {"[1,null]", "[1,null,true,true,true]", "[1,true,null]"});
  ExpectMatches(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
}

TEST(SchemaGrammar, HasStringsOfALengthPatternOrFormat) {
  ExpectMatches(R"({"minLength": 2, "maxLength": 3})", {R"("ab")", R"("\n\u00e9é")"}, {R"("a")", R"("abcd")"});
  ExpectMatches(R"({"pattern": "^[a-z]+\"$"})", {R"("ab\"")"}, {R"("ab")", R"("\"")"});
  ExpectMatches(R"({"pattern": "b."})", {R"("abc")", R"("b\"")"}, {R"("b")", R"("cc")"});
  ExpectMatches(R"({"format": "date"})", {R"("2024-02-29")", R"("2026-11-22")"},
                {R"("2023-02-29")", R"("2024-13-01")", R"("1900-02-29")"});
  ExpectMatches(R"({"format": "date-time"})", {R"("2024-02-28T10:00:59.5+01:00")"}, {R"("2024-02-28")"});
  ExpectMatches(R"({"format": "email"})", {R"("a.b@example.org")"}, {R"("a.b")"});
  ExpectMatches(R"({"format": "uri"})", {R"("https://example.org/a?b=c#d")"}, {R"("example")"});
  ExpectMatches(R"({"format": "ipv4"})", {R"("192.168.0.255")"}, {R"("192.168.0.256")"});
}

TEST(SchemaGrammar, HasValues) {
  ExpectMatches(R"({"enum": ["a\n", 1, null, {"x": [1]}]})", {R"("a\n")", "1", "null", R"({"x": [1]})", R"({"x":[1]})"},
                {"2", "{}"});
  ExpectMatches(R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"});
  ExpectMatches(R"({"const": 2.5})", {"2.5"}, {"2.50", "2"});
}

TEST(SchemaGrammar, HasAlternativesBesideOtherKeywords) {
  ExpectMatches(R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})", {"1", R"("a")"},
                {R"("ab")"});
  ExpectMatches(
      R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": false,
                    "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
      {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"}, {"{}"});
  ExpectMatches(R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                              {"properties": {"b": {"type": "null"}, "a": {"maximum": 5}}, "additionalProperties": {"type": "boolean"}}]})",
                {R"({"a":5})", R"({"a":5,"b":null})", R"({"a":5,"c":true})"}, {R"({"a":6})", R"({"a":5,"c":1})", "{}"});
  ExpectMatches(
      R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "x"}, "v": {"type": "integer"}}, "required": ["kind", "v"]},
                              {"type": "object", "properties": {"kind": {"const": "y"}}, "required": ["kind"]}]})",
      {R"({"kind":"x","v":1})", R"({"kind":"y"})"}, {R"({"kind":"x"})", R"({"kind":"z"})"});
}

TEST(SchemaGrammar, FollowsReferencesAlsoInCircles) {
  ExpectMatches(
      R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["v"], "additionalProperties": false}}})",
      {R"({"v":1})", R"({"v":1,"children":[{"v":2,"children":[]},{"v":3}]})"}, {R"({"v":1,"children":[{}]})"});
  ExpectMatches(R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
  ExpectMatches(
      R"({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n", "maximum": 3}}, "additionalProperties": false})",
      {R"({"a":3})"}, {R"({"a":4})"});
}

TEST(SchemaGrammar, NamesWhatItCannotServeAndWhere) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"properties": {"a/b": {"uniqueItems": true}}})",
       "keyword \"uniqueItems\" is not supported at #/properties/a~1b"},
      {R"({"multipleOf": 3})", "keyword \"multipleOf\" is not supported at #"},
      {R"({"items": {"not": {}}})", "keyword \"not\" is not supported at #/items"},
      {R"({"if": {}})", "\"if\""},
      {R"({"patternProperties": {}})", "\"patternProperties\""},
      {R"({"minProperties": 1})", "\"minProperties\""},
      {R"({"format": "color"})", "\"format\" \"color\" is not supported"},
      {R"j({"pattern": "(?=a)"})j", "\"pattern\": look-around"},
      {R"({"pattern": "a", "maxLength": 3})", "together are not supported"},
      {R"({"type": "text"})", "type \"text\" is not one of JSON's"},
      {R"({"type": "number", "minimum": 0.5})", "\"minimum\" that is not whole"},
      {R"({"$ref": "https://example.org"})", "outside of the schema"},
      {R"({"$ref": "#/$defs/x"})", "where there is no schema"},
      {R"({"$ref": "#"})", "no text matches"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "may have values in common"},
      {R"({"properties": {"a": 1}})", "\"properties\" must be an object of schemas"},
      {R"({"minLength": -1})", "\"minLength\" must be a whole number"},
      {R"({"required": ["a"], "additionalProperties": false})", "required but not allowed"},
      {R"({"type": "array", "minItems": 100000, "items": {"type": "string", "maxLength": 100000}})", "too large"},
  };
  for (const auto& [schema, message] : cases) EXPECT_THAT(ErrorOf(schema), HasSubstr(message)) << schema;
}

// Every integer of a window, with and without decimals, against the bounds themselves.
TEST(NumberRange, HasExactlyTheNumbersWithinItsBounds) {
  std::mt19937 random(4);
  for (int round = 0; round < 150; ++round) {
    NumberBounds bounds;
    if (random() % 4 != 0) bounds.low = static_cast<int64_t>(random() % 2400) - 1200;
    if (random() % 4 != 0)
      bounds.high = bounds.low.value_or(-50) + static_cast<int64_t>(random() % (round % 2 ? 30 : 1500));
    bounds.low_excluded = random() % 2;
    bounds.high_excluded = random() % 2;
    const auto within = [&](double value) {
      return (!bounds.low || (bounds.low_excluded ? value > *bounds.low : value >= *bounds.low)) &&
             (!bounds.high || (bounds.high_excluded ? value < *bounds.high : value <= *bounds.high));
    };
    for (const bool whole : {true, false}) {
      Grammar grammar;
      grammar.AddRule("root", whole ? AddIntegerRange(bounds, grammar) : AddNumberRange(bounds, grammar));
      absl::StatusOr<Automaton> automaton = Automaton::Compile(grammar);
      if (!automaton.ok()) continue;  // there is no such number
      TextMatcher matcher(*std::move(automaton));
      for (int value = -3000; value <= 3000; value += value % 50 == 0 ? 1 : 7) {
        ASSERT_EQ(matcher.Matches(std::to_string(value)), within(value)) << value;
        ASSERT_FALSE(matcher.Matches("0" + std::to_string(std::abs(value))));
        if (whole) continue;
        const std::string sign = value < 0 ? "-" : "", digits = std::to_string(std::abs(value));
        for (const std::string_view fraction : {".5", ".0", ".001", ".500"}) {
          const std::string text = sign + digits + std::string(fraction);
          ASSERT_EQ(matcher.Matches(text), within(std::stod(text))) << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
