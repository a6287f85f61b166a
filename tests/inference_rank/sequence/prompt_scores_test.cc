#include "inference_rank/sequence/prompt_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace winnow {
namespace {

TEST(PromptScores, TellHowLikelyATokenWasAndHowManyWereAsLikely) {
  PromptScores scores(/*top_logprobs=*/2);
  EXPECT_FALSE(scores.TakeBatch(/*last=*/true).has_value());
  const std::vector<float> logits = {1, 3, 2, 2};
  const double sum = std::exp(1.0) + std::exp(3.0) + 2 * std::exp(2.0);
  scores.Add(5, 2, logits);
  scores.Add(6, 1, logits);
  EXPECT_FALSE(scores.TakeBatch(/*last=*/false).has_value());
  const auto batch = scores.TakeBatch(/*last=*/true);
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->first_index(), 5u);
  ASSERT_EQ(batch->tokens_size(), 2);
  EXPECT_EQ(batch->tokens(0).id(), 2u);
  EXPECT_NEAR(batch->tokens(0).logprob(), 2 - std::log(sum), 1e-5);
  EXPECT_EQ(batch->tokens(0).rank(), 3u);
  ASSERT_EQ(batch->tokens(0).top_logprobs_size(), 2);
  EXPECT_EQ(batch->tokens(0).top_logprobs(0).id(), 1u);
  EXPECT_EQ(batch->tokens(1).rank(), 1u);
  EXPECT_EQ(batch->tokens(1).logprob(), batch->tokens(1).top_logprobs(0).logprob());
}

TEST(PromptScores, AFullBatchIsTakenAtOnceAndTheNextBeginsBehindIt) {
  PromptScores scores(0);
  const std::vector<float> logits = {0, 1};
  uint32_t index = 1, told = 1;
  for (int batches = 0; batches < 3; ++index) {
    scores.Add(index, 0, logits);
    const auto batch = scores.TakeBatch(false);
    if (!batch.has_value()) continue;
    EXPECT_EQ(batch->first_index(), told);
    told += batch->tokens_size();
    EXPECT_EQ(told, index + 1);
    ++batches;
  }
}

}  // namespace
}  // namespace winnow
