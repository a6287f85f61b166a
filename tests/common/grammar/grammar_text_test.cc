#include "common/grammar/grammar_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/grammar/automaton.h"
#include "common/grammar/grammar_states.h"
#include "tests/common/grammar/grammar_oracle.h"
#include "tests/common/grammar/random_grammar.h"

namespace winnow {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const absl::StatusOr<Grammar> grammar = ParseGrammarText(text);
  EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << grammar.status();
  return std::string(grammar.status().message());
}

bool Matches(std::string_view grammar, std::string_view text) {
  const absl::StatusOr<Grammar> parsed = ParseGrammarText(grammar);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  const absl::StatusOr<Automaton> automaton = Automaton::Compile(*parsed);
  EXPECT_TRUE(automaton.ok()) << automaton.status();
  GrammarStates states(*automaton);
  GrammarStates::StateId state = states.Start();
  for (const char c : text) state = states.Next(state, static_cast<uint8_t>(c));
  return states.accepts(state);
}

TEST(GrammarText, HasTextsClassesGroupsAndRepetitions) {
  constexpr std::string_view kGrammar = R"(
    # A comment, and rules over several lines.
    root ::= "say " word (", " word){1,2}
             ("!" | "." "."?)   # an end
    word ::= [a-c\-\]]+ | [^a-z \x41-\u0044] | "\"\\\n" | .{3}
  )";
  EXPECT_TRUE(Matches(kGrammar, "say abc, -]!"));
  EXPECT_TRUE(Matches(kGrammar, "say \"\\\n, Z, xyz.."));
  EXPECT_TRUE(Matches(kGrammar, "say \xC3\xA9, a."));
  EXPECT_FALSE(Matches(kGrammar, "say abc!"));
  EXPECT_FALSE(Matches(kGrammar, "say A, a!"));
  EXPECT_FALSE(Matches(kGrammar, "say a, a, a, a!"));
}

TEST(GrammarText, MayHaveEmptyAlternatives) {
  EXPECT_TRUE(Matches("root ::= \"a\" | ", ""));
  EXPECT_TRUE(Matches("root ::= (| \"b\") \"c\"", "c"));
}

TEST(GrammarText, NamesWhatIsWrongAndWhere) {
  EXPECT_THAT(ErrorOf("start ::= \"a\""), HasSubstr("no rule \"root\""));
  EXPECT_THAT(ErrorOf("root ::= word"), HasSubstr("rule \"word\" is used but not defined"));
  EXPECT_THAT(ErrorOf("root ::= \"a\"\nroot ::= \"b\""), HasSubstr("defined twice"));
  EXPECT_THAT(ErrorOf("root ::= \"a"), HasSubstr("closing quote at byte 11"));
  EXPECT_THAT(ErrorOf("root ::= [a"), HasSubstr("lacks its \"]\""));
  EXPECT_THAT(ErrorOf("root ::= [z-a]"), HasSubstr("wrong way round"));
  EXPECT_THAT(ErrorOf("root ::= (\"a\""), HasSubstr("\")\" is missing"));
  EXPECT_THAT(ErrorOf("root ::= \"a\")"), HasSubstr("unexpected text in rule \"root\" at byte 12"));
  EXPECT_THAT(ErrorOf("root ::= \"a\"{3,2}"), HasSubstr("bounds"));
  EXPECT_THAT(ErrorOf("root ::= \"\\q\""), HasSubstr("unknown escape"));
  EXPECT_THAT(ErrorOf("root ::= \"\\ud800\""), HasSubstr("not a character's code"));
  EXPECT_THAT(ErrorOf("root ::= " + std::string(200, '(')), HasSubstr("too deeply"));
  EXPECT_THAT(ErrorOf("root = \"a\""), HasSubstr("expected a rule"));
}

TEST(GrammarText, WrittenAndReadAgainIsTheSameGrammar) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const Grammar grammar = RandomGrammar(random);
    if (!Automaton::Compile(grammar).ok()) continue;
    const absl::StatusOr<std::string> text = GrammarText(grammar);
    ASSERT_TRUE(text.ok());
    const absl::StatusOr<Grammar> again = ParseGrammarText(*text);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << *text;
    const GrammarOracle first(grammar), second(*again);
    for (int i = 0; i < 40; ++i) {
      std::string sample;
      for (size_t size = random() % 5; size > 0; --size) {
        static const std::string kPieces[] = {"a", "b", "c", "\xC3\xA9", "\xE0\xA0\x80"};
        sample += kPieces[random() % 5];
      }
      ASSERT_EQ(first.Matches(sample), second.Matches(sample)) << *text << sample;
      ASSERT_EQ(first.IsAlive(sample), second.IsAlive(sample)) << *text << sample;
    }
  }
}

}  // namespace
}  // namespace winnow
