#include "common/grammar/regex_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>

#include "common/grammar/automaton.h"
#include "common/grammar/grammar_states.h"

namespace winnow {
namespace {

using testing::HasSubstr;

class RegexMatcher {
 public:
  RegexMatcher(std::string_view regex, bool search) : automaton_(Compile(regex, search)), states_(automaton_) {}

  bool Matches(std::string_view text) {
    GrammarStates::StateId state = states_.Start();
    for (const char c : text) state = states_.Next(state, static_cast<uint8_t>(c));
    return states_.accepts(state);
  }

 private:
  static Automaton Compile(std::string_view regex, bool search) {
    Grammar grammar;
    const absl::StatusOr<Grammar::ExprId> body = AddRegex(regex, {.search = search}, grammar);
    EXPECT_TRUE(body.ok()) << regex << ": " << body.status();
    grammar.AddRule("root", *body);
    return *Automaton::Compile(grammar);
  }

  const Automaton automaton_;
  GrammarStates states_;
};

constexpr std::string_view kRegexes[] = {
    "abc",   "a|bc|",  "(a|b)*c",    "(?:ab)+", "[a-c]{2}", "[^a]b?", "a{2,}",        "a{1,3}b",
    "\\d+",  "\\w\\W", "\\s|\\S\\S", "[\\d-]+", "[a\\-c]+", "a.c",    "\\x61\\u0062", "(a(b(c)?)?)?",
    "^abc$", "^a|b$",  "a\\.b",      "[.+*]+",  "(a*)*b",   "a+?b",   "[\\w.]+",      "\\(a\\)",
};

TEST(RegexParser, MatchesWhatECMAScriptMatches) {
  std::mt19937 random(3);
  for (const std::string_view text : kRegexes) {
    const std::regex oracle{std::string(text), std::regex::ECMAScript};
    RegexMatcher full(text, false), search(text, true);
    for (int i = 0; i < 2000; ++i) {
      std::string sample;
      for (size_t size = random() % 7; size > 0; --size) sample += "aabbcc1- .+()"[random() % 13];
      ASSERT_EQ(full.Matches(sample), std::regex_match(sample, oracle)) << text << " on \"" << sample << "\"";
      ASSERT_EQ(search.Matches(sample), std::regex_search(sample, oracle)) << text << " in \"" << sample << "\"";
    }
  }
}

TEST(RegexParser, HasCharactersBeyondAscii) {
  RegexMatcher matcher("[\xC3\xA0-\xC3\xBF]+\\u{1F600}.", false);
  EXPECT_TRUE(matcher.Matches("\xC3\xA9\xC3\xA8\xF0\x9F\x98\x80\xE4\xB8\xAD"));
  EXPECT_FALSE(matcher.Matches("e\xF0\x9F\x98\x80x"));
}

TEST(RegexParser, RefusesWhatIsNotRegularByName) {
  const std::pair<std::string_view, std::string_view> kCases[] = {
      {"(?=a)", "look-around"},   {"(?<!a)b", "look-around"},      {"(a)\\1", "\"\\1\" is not supported"},
      {"\\bword", "\"\\b\""},     {"a++", "possessive"},           {"\\p{L}", "\"\\p\""},
      {"(?i)a", "flags"},         {"a(^b)", "\"^\" is allowed"},   {"(a$)b", "\"$\" is allowed"},
      {"a$b", "can never match"}, {"(a", "\")\" is missing"},      {"a)", "has no \"(\""},
      {"[a", "lacks its \"]\""},  {"*a", "repetition of nothing"}, {"a**", "repetition of nothing"},
      {"[z-a]", "has no order"},  {"a{2,1}", "wrong way round"},   {"\\uD800", "not a character's code"}};
  for (const auto& [regex, message] : kCases) {
    Grammar grammar;
    const absl::StatusOr<Grammar::ExprId> body = AddRegex(regex, {}, grammar);
    ASSERT_TRUE(absl::IsInvalidArgument(body.status())) << regex;
    EXPECT_THAT(std::string(body.status().message()), HasSubstr(std::string(message))) << regex;
  }
}

}  // namespace
}  // namespace winnow
