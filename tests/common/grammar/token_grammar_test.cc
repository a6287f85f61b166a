#include "common/grammar/token_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/grammar/grammar_matcher.h"
#include "common/grammar/grammar_text.h"
#include "tests/common/grammar/grammar_oracle.h"
#include "tests/common/grammar/random_grammar.h"

namespace winnow {
namespace {

using testing::HasSubstr;

// Tokens of bytes that the grammars write, of parts of characters, and some that no grammar lets follow.
std::shared_ptr<const TokenTrie> RandomTrie(std::mt19937& random) {
  static const std::vector<std::string> kPieces = {"a", "b", "c", "\xC3", "\xA9", "\xC3\xA8", "\xE0", "\xA0\x80", "z"};
  std::vector<std::string> bytes(1);  // token 0 stands for nothing
  const size_t count = 10 + random() % 40;
  for (size_t i = 0; i < count; ++i) {
    std::string token;
    const size_t pieces = 1 + random() % 4;
    for (size_t piece = 0; piece < pieces; ++piece) token += kPieces[random() % kPieces.size()];
    bytes.push_back(token);
  }
  return std::make_shared<TokenTrie>(bytes, std::vector<uint32_t>{1});
}

TEST(TokenGrammar, LetsATokenFollowExactlyWhenSomeTextGoesOnWithIt) {
  std::mt19937 random(1);
  int compiled = 0, masks = 0, allowed = 0;
  for (int round = 0; round < 600; ++round) {
    const Grammar grammar = RandomGrammar(random);
    absl::StatusOr<Automaton> automaton = Automaton::Compile(grammar);
    if (!automaton.ok()) continue;
    const GrammarOracle oracle(grammar);
    ASSERT_TRUE(oracle.MatchesAnything());
    ++compiled;
    const std::shared_ptr<const TokenTrie> trie = RandomTrie(random);
    TokenGrammar tokens(*std::move(automaton), trie);
    for (int walk = 0; walk < 3; ++walk) {
      std::string text;
      TokenGrammar::StateId state = tokens.start();
      for (int step = 0; step < 4; ++step) {
        ASSERT_EQ(tokens.accepts(state), oracle.Matches(text)) << *GrammarText(grammar) << text;
        const absl::StatusOr<const TokenMask*> mask = tokens.Mask(state);
        ASSERT_TRUE(mask.ok());
        ++masks;
        std::vector<uint32_t> next;
        for (uint32_t id = 0; id < trie->vocab_size(); ++id) {
          const bool expected = id > 1 && oracle.IsAlive(text + std::string(trie->bytes(id)));
          ASSERT_EQ((*mask)->Has(id), expected)
              << *GrammarText(grammar) << "after \"" << text << "\" token \"" << trie->bytes(id) << "\"";
          if (expected) next.push_back(id);
        }
        allowed += static_cast<int>(next.size());
        if (next.empty()) break;
        const uint32_t chosen = next[random() % next.size()];
        text += trie->bytes(chosen);
        state = tokens.Next(state, chosen);
      }
    }
  }
  EXPECT_GT(compiled, 200);
  EXPECT_GT(masks, 1000);
  EXPECT_GT(allowed, 3000);
}

std::shared_ptr<TokenGrammar> GrammarOf(std::string_view text, std::vector<std::string> tokens,
                                        std::vector<uint32_t> special = {}, std::vector<uint32_t> shown = {}) {
  return std::make_shared<TokenGrammar>(*Automaton::Compile(*ParseGrammarText(text)),
                                        std::make_shared<TokenTrie>(std::move(tokens), special), std::move(shown));
}

std::vector<uint32_t> Allowed(GrammarMatcher& matcher) {
  std::vector<uint32_t> ids;
  const TokenMask& mask = **matcher.Mask();
  for (uint32_t id = 0; id < 64 * mask.words().size(); ++id) {
    if (mask.Has(id)) ids.push_back(id);
  }
  return ids;
}

TEST(TokenGrammar, TreatsSpecialTokensAsNoTextButForThoseThatAreShown) {
  const std::vector<std::string> tokens = {"<a>", "<", "a>", "x", "</s>"};
  GrammarMatcher plain(GrammarOf(R"(root ::= "<a>x")", tokens, {0, 4}));
  EXPECT_THAT(Allowed(plain), testing::ElementsAre(1));
  GrammarMatcher shown(GrammarOf(R"(root ::= "<a>x")", tokens, {0, 4}, {0}));
  EXPECT_THAT(Allowed(shown), testing::ElementsAre(0, 1));
  shown.Advance(0);
  EXPECT_THAT(Allowed(shown), testing::ElementsAre(3));
  plain.Advance(0);
  EXPECT_TRUE(plain.is_dead());
  EXPECT_TRUE((*plain.Mask())->empty());
}

TEST(TokenGrammar, KnowsWhereATextMayAndMustEnd) {
  GrammarMatcher matcher(GrammarOf(R"(root ::= "a" "b"?)", {"a", "b"}));
  EXPECT_FALSE(matcher.accepts());
  matcher.Advance(0);
  EXPECT_TRUE(matcher.accepts());
  EXPECT_FALSE(matcher.is_complete());
  matcher.Advance(1);
  EXPECT_TRUE(matcher.accepts());
  EXPECT_TRUE(matcher.is_complete());
}

// A matcher whose grammar has forgotten everything meanwhile goes on where it was.
TEST(TokenGrammar, ForgetsStatesThatTakeTooMuchMemoryAndGoesOn) {
  constexpr std::string_view kText = R"g(root ::= "(" root? ")" | "x" [a-z]{0,200} "y")g";
  const auto grammar = GrammarOf(kText, {"(", ")", "x", "y", "a", "b"});
  GrammarMatcher early(grammar);
  early.Advance(0);
  const uint64_t before = grammar->generation();
  for (int depth = 1; grammar->generation() == before && depth < 40000; ++depth) {
    GrammarMatcher deep(grammar);
    for (int i = 0; i < depth % 400; ++i) deep.Advance(0);
    deep.Advance(2);
    for (int i = 0; i < 100; ++i) deep.Advance(4);
    ASSERT_TRUE(deep.Mask().ok());
  }
  ASSERT_GT(grammar->generation(), before);
  EXPECT_THAT(Allowed(early), testing::ElementsAre(0, 1, 2));
  early.Advance(1);
  EXPECT_TRUE(early.is_complete());
}

TEST(TokenGrammar, GivesUpGrammarsThatAreTooAmbiguous) {
  // After n letters there are 2^n ways to go on.
  const auto grammar = GrammarOf(R"(root ::= "a" root "b" | "a" root "c" | "d")", {std::string(40, 'a'), "d", "b"});
  GrammarMatcher matcher(grammar);
  const absl::StatusOr<const TokenMask*> mask = matcher.Mask();
  ASSERT_FALSE(mask.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(mask.status()));
  EXPECT_THAT(std::string(mask.status().message()), HasSubstr("ambiguous"));
}

}  // namespace
}  // namespace winnow
