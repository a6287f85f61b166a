// The quality guard, from a request's field to what comes back.
#include <gtest/gtest.h>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

struct SmallBudget {
  static Cluster::Options Options() { return {.flags = {"--budget=64"}}; }
};

class Guard : public SharedCluster<SmallBudget> {
 protected:
  static Completion Ask(const Json& selection) {
    Json request = GreedyRequest(DemoCaseOfAtLeast(2000).prompt, 24);
    request["winnow"] = selection;
    return Complete(cluster_->http(), request);
  }
};

TEST_F(Guard, KeepsTheMassAboveTheThresholdAndSaysWhatItDid) {
  const Completion plain = Ask({{"selection", "winnow"}});
  ASSERT_TRUE(plain.ok()) << plain.error;
  ASSERT_LT(plain.Stat("captured_mass_p5"), 0.9) << "the case must need a guard";
  EXPECT_EQ(plain.Stat("correction_rows"), 0);
  for (const char* preset : {"winnow", "depth", "async-token", "exact-token"}) {
    const Completion guarded = Ask({{"selection", preset}, {"min_captured_mass", 0.9}});
    ASSERT_TRUE(guarded.ok()) << guarded.error;
    EXPECT_GE(guarded.Stat("captured_mass_p5"), 0.9) << preset;
    EXPECT_LT(guarded.Stat("captured_mass_before_mean"), guarded.Stat("captured_mass_mean")) << preset;
    EXPECT_GT(guarded.Stat("correction_rows"), 0) << preset;
  }
  const Metrics cache = cluster_->MetricsOf("cache-0");
  for (const char* action : {"missed_top_k", "widened", "budget_growth"}) {
    EXPECT_GT(cache.Value("winnow_selection_escalations_total", {{"action", action}}), 0) << action;
  }
  EXPECT_GT(cache.Value("winnow_corrected_attention_mass_count"), 0);
}

TEST_F(Guard, AThresholdOfOneAnswersAsDenseDoes) {
  const Completion dense = Ask({{"selection", "dense"}});
  const Completion guarded = Ask({{"selection", "async-token"}, {"min_captured_mass", 1}});
  ASSERT_TRUE(dense.ok() && guarded.ok()) << dense.error << guarded.error;
  EXPECT_EQ(guarded.ids, dense.ids);
  EXPECT_EQ(guarded.Stat("captured_mass_mean"), 1);
}

TEST_F(Guard, SaysWhichMassesAreBounds) {
  const auto is_bound = [](const Completion& answer) -> bool {
    return answer.usage.at("winnow").at("captured_mass_is_bound");
  };
  const auto bounds = [](const char* rank) {
    return cluster_->MetricsOf(rank).Value("winnow_captured_mass_bounds_total");
  };
  const Completion token = Ask({{"selection", "exact-token"}});
  ASSERT_TRUE(token.ok()) << token.error;
  EXPECT_FALSE(is_bound(token));
  EXPECT_EQ(bounds("cache-0"), 0);
  EXPECT_EQ(bounds("inference-0"), 0);
  // A verification scores every key, whatever the scorer.
  const Json two_stage = "predictor=exact,scorer=two-stage,min_candidate_tokens=0,score_all_below_tokens=0";
  const Completion verified = Ask({{"selection", two_stage}, {"min_captured_mass", 0.01}});
  ASSERT_TRUE(verified.ok()) << verified.error;
  EXPECT_FALSE(is_bound(verified));
  EXPECT_EQ(bounds("cache-0"), 0);
  const Completion bounded = Ask({{"selection", two_stage}});
  ASSERT_TRUE(bounded.ok()) << bounded.error;
  EXPECT_TRUE(is_bound(bounded));
  EXPECT_GT(bounded.Stat("captured_mass_mean"), 0);
  EXPECT_LT(bounded.Stat("captured_mass_mean"), verified.Stat("captured_mass_mean")) << "of the same selections";
  EXPECT_GT(bounds("cache-0"), 0);
  EXPECT_EQ(bounds("cache-0"), bounds("inference-0"));
}

}  // namespace
}  // namespace winnow::e2e
