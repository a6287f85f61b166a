#include "inference_rank/sequence/token_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "common/grammar/grammar_text.h"
#include "inference_rank/sequence/grammar_cache.h"
#include "inference_rank/sequence/sampler.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kEnd = 5;

// Tokens 0 to 4 are "a" to "d" and "ab", 5 ends an output.
std::shared_ptr<const TokenTrie> Letters() {
  return std::make_shared<TokenTrie>(std::vector<std::string>{"a", "b", "c", "d", "ab", "</s>"},
                                     std::vector<uint32_t>{kEnd});
}

std::shared_ptr<TokenGrammar> GrammarOf(std::string_view text) {
  return std::make_shared<TokenGrammar>(*Automaton::Compile(*ParseGrammarText(text)), Letters());
}

std::vector<uint32_t> Left(TokenFilter& filter, uint32_t index) {
  std::vector<float> logits(6, 1.0f);
  const absl::Status status = filter.Apply(logits, index);
  EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < logits.size(); ++id) {
    if (!std::isinf(logits[id])) ids.push_back(id);
  }
  return ids;
}

TEST(TokenFilter, RestrictsNothingThatNobodyAskedFor) {
  TokenFilter filter(v1::SamplingParams(), {kEnd}, nullptr);
  EXPECT_FALSE(filter.Restricts(0));
  EXPECT_FALSE(filter.is_complete());
}

TEST(TokenFilter, KeepsOutputsFromEndingBeforeMinTokens) {
  v1::SamplingParams params;
  params.set_min_tokens(2);
  TokenFilter filter(params, {kEnd, 3}, nullptr);
  EXPECT_TRUE(filter.Restricts(1));
  EXPECT_THAT(Left(filter, 1), ElementsAre(0, 1, 2, 4));
  EXPECT_FALSE(filter.Restricts(2));
}

TEST(TokenFilter, LeavesAllowedTokensAndThoseThatEndAnOutput) {
  v1::SamplingParams params;
  params.add_allowed_token_ids(1);
  params.add_allowed_token_ids(2);
  TokenFilter filter(params, {kEnd}, nullptr);
  EXPECT_TRUE(filter.Restricts(100));
  EXPECT_THAT(Left(filter, 100), ElementsAre(1, 2, kEnd));
}

TEST(TokenFilter, TakesOutTheLastTokenOfABadWordBehindTheOthers) {
  v1::SamplingParams params;
  for (const uint32_t id : {0, 1, 2}) params.add_bad_words()->mutable_token_ids()->Add(id);
  params.mutable_bad_words(0)->mutable_token_ids()->Add(3);
  params.mutable_bad_words(1)->mutable_token_ids()->Add(0);
  params.mutable_bad_words(1)->mutable_token_ids()->Add(4);
  TokenFilter filter(params, {kEnd}, nullptr);  // "a d", "b a ab", "c"
  EXPECT_THAT(Left(filter, 0), ElementsAre(0, 1, 3, 4, kEnd));
  filter.Observe(1);
  filter.Observe(0);
  EXPECT_THAT(Left(filter, 2), ElementsAre(0, 1, kEnd));
  filter.Observe(0);
  EXPECT_THAT(Left(filter, 3), ElementsAre(0, 1, 4, kEnd));
}

TEST(TokenFilter, LetsAnOutputEndOnlyWhereItsGrammarDoes) {
  TokenFilter filter({}, {kEnd}, GrammarOf(R"(root ::= "ab" "c"* "d"?)"));
  EXPECT_TRUE(filter.Restricts(0));
  EXPECT_THAT(Left(filter, 0), ElementsAre(0, 4));
  filter.Observe(4);
  EXPECT_THAT(Left(filter, 1), ElementsAre(2, 3, kEnd));
  filter.Observe(2);
  EXPECT_FALSE(filter.is_complete());
  filter.Observe(3);
  EXPECT_TRUE(filter.is_complete());
}

TEST(TokenFilter, GoesOnFromTokensThatAreGivenAgain) {
  const auto grammar = GrammarOf(R"(root ::= ("a" "b" "c"){3})");
  TokenFilter first({}, {kEnd}, grammar);
  for (const uint32_t id : {4u, 2u, 0u}) first.Observe(id);
  TokenFilter second({}, {kEnd}, GrammarOf(R"(root ::= ("a" "b" "c"){3})"));
  for (const uint32_t id : {4u, 2u, 0u}) second.Observe(id);
  EXPECT_EQ(Left(first, 3), Left(second, 3));
  EXPECT_THAT(Left(first, 3), ElementsAre(1));
}

TEST(TokenFilter, SaysWhenNothingMayFollow) {
  v1::SamplingParams params;
  params.add_allowed_token_ids(3);
  TokenFilter filter(params, {kEnd}, GrammarOf(R"(root ::= "a")"));
  std::vector<float> logits(6, 1.0f);
  const absl::Status status = filter.Apply(logits, 0);
  ASSERT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no token may follow"));
}

TEST(TokenFilter, AndSamplerNeverDrawWhatIsImpossible) {
  v1::SamplingParams params;
  params.set_temperature(2);
  params.set_top_k(4);
  params.set_seed(9);
  Sampler sampler(params, {});
  TokenFilter filter({}, {kEnd}, GrammarOf("root ::= [bd]{2000}"));
  std::vector<int> drawn(6);
  for (uint32_t i = 0; i < 1000; ++i) {
    std::vector<float> logits = {5, 1, 5, 0.5, 5, 5};
    ASSERT_TRUE(filter.Apply(logits, i).ok());
    const uint32_t id = sampler.Sample(logits, i);
    ++drawn[id];
    filter.Observe(id);
  }
  EXPECT_EQ(drawn[1] + drawn[3], 1000);
  EXPECT_GT(drawn[1], 100);
  EXPECT_GT(drawn[3], 100);
}

TEST(GrammarCache, CompilesAGrammarOnceAndKeepsTheLastOnes) {
  InferenceRankMetrics metrics(1);
  GrammarCache cache(Letters(), metrics);
  v1::TokenConstraint constraint;
  constraint.set_grammar("root ::= \"a\"");
  const auto first = cache.Get(constraint);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*cache.Get(constraint), *first);
  constraint.add_shown_special_token_ids(kEnd);
  EXPECT_NE(*cache.Get(constraint), *first);
  EXPECT_EQ(metrics.grammars_compiled, 2u);
  EXPECT_EQ(metrics.grammars_reused, 1u);
  constraint.set_grammar("root ::= ");
  EXPECT_TRUE(cache.Get(constraint).ok()) << "the empty text";
  constraint.set_grammar("root ::= root");
  EXPECT_TRUE(absl::IsInvalidArgument(cache.Get(constraint).status()));
  GrammarCache without(absl::FailedPreconditionError("no tokenizer.json"), metrics);
  EXPECT_TRUE(absl::IsFailedPrecondition(without.Get(constraint).status()));
}

}  // namespace
}  // namespace winnow
