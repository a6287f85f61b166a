// More sequences than fast memory has room for: with working-set control a step loads what has changed, without it what
// the step before has evicted.
#include <gtest/gtest.h>

#include <future>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

constexpr int kSequences = 8;
constexpr int kTokens = 150;
constexpr size_t kPromptTokens = 3000;

// Pages of 32 rows, all of which a step reads on the cache rank: SparseServe's HBM is the fast tier alone.
std::unique_ptr<Cluster> StartCluster(const std::string& control) {
  return StartOrFail({"--selection=sparseserve,transfer=full", "--budget=256", "--max-context=4096",
                      "--fast-memory=14MiB", "--prefix-cache=false", "--working-set-control=" + control});
}

struct Load {
  std::vector<TokenIds> answers;
  double loaded_rows = 0;
  double steps = 0;
  double loaded_per_step() const { return loaded_rows / steps; }
};

Load LoadOf(const Cluster& cluster) {
  std::vector<std::future<Completion>> done;
  for (size_t i = 0; i < kSequences; ++i) {
    done.push_back(std::async(std::launch::async, [&cluster, i] {
      return Complete(cluster.http(), GreedyRequest(DemoText(kPromptTokens, i * 700), kTokens));
    }));
  }
  Load load;
  for (auto& one : done) {
    const Completion completion = one.get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    load.answers.push_back(completion.ids);
  }
  load.loaded_rows = cluster.MetricsOf("cache-0").Value("winnow_tier_loaded_rows_total");
  load.steps = cluster.MetricsOf("inference-0").Value("winnow_decode_steps_total");
  return load;
}

TEST(WorkingSetControl, LoadsTenTimesLessPerStepAndChangesNoAnswer) {
  Load with, without;
  {
    const auto cluster = StartCluster("on");
    ASSERT_NE(cluster, nullptr);
    with = LoadOf(*cluster);
  }
  {
    const auto cluster = StartCluster("off");
    ASSERT_NE(cluster, nullptr);
    without = LoadOf(*cluster);
  }
  GTEST_LOG_(INFO) << "rows loaded per step: " << with.loaded_per_step() << " in " << with.steps << " steps with, "
                   << without.loaded_per_step() << " in " << without.steps << " steps without";
  EXPECT_EQ(with.answers, without.answers);
  EXPECT_GE(without.loaded_per_step(), 10 * with.loaded_per_step());
}

}  // namespace
}  // namespace winnow::e2e
