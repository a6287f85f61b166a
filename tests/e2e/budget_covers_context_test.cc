// If the budget covers the context, everything is attended: the result is that of dense attention, bit for bit.
#include <gtest/gtest.h>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

struct WideBudget {
  static Cluster::Options Options() { return {.flags = {"--budget=2048", "--max-context=4096"}}; }
};
class BudgetCoversContext : public SharedCluster<WideBudget> {};

TEST_F(BudgetCoversContext, GivesTheDenseResult) {
  const TokenIds& prompt = DemoCaseOfAtLeast(1500).prompt;  // with the answer below sinks + budget + recent window
  ASSERT_LT(prompt.size(), 2048u);
  Json request = GreedyRequest(prompt, 48);
  request["logprobs"] = 1;
  request["winnow"] = {{"selection", "dense"}};
  const Completion dense = Complete(cluster_->http(), request);
  ASSERT_TRUE(dense.ok()) << dense.error;
  for (const char* preset : {"winnow", "async-token", "exact-token"}) {
    request["winnow"] = {{"selection", preset}};
    const Completion completion = Complete(cluster_->http(), request);
    ASSERT_TRUE(completion.ok()) << preset << ": " << completion.error;
    EXPECT_EQ(completion.ids, dense.ids) << preset;
    EXPECT_EQ(completion.text, dense.text) << preset;
    EXPECT_EQ(completion.choice.at("logprobs").at("token_logprobs"), dense.choice.at("logprobs").at("token_logprobs"))
        << preset;
    EXPECT_EQ(completion.Stat("streamed_rows"), 0) << preset;
  }
}

// The same request with a budget that does not cover the context goes another way, or the test above shows nothing.
TEST_F(BudgetCoversContext, ASmallerOneSelects) {
  Json request = GreedyRequest(DemoCaseOfAtLeast(1500).prompt, 8);
  request["winnow"] = {{"selection", "winnow"}, {"budget", 128}};
  const Completion completion = Complete(cluster_->http(), request);
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_GT(completion.Stat("streamed_rows"), 0);
  EXPECT_LT(completion.Stat("captured_mass_mean"), 1);
}

}  // namespace
}  // namespace winnow::e2e
