// API keys share a rank: who sends many requests waits behind them alone.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

struct OnePlaceForAll {
  static Cluster::Options Options() {
    return {.flags = {"--budget=256", "--max-context=8192", "--max-running=1", "--age-bound=0s"}};
  }
};
using FairShare = SharedCluster<OnePlaceForAll>;

TEST_F(FairShare, AFloodOfOneKeyDoesNotHoldUpAnother) {
  constexpr int kFlood = 16;
  const Json request = GreedyRequest(DemoCaseOfAtLeast(500).prompt, 100);
  const HttpClient flooding(cluster_->http_address(), std::chrono::seconds(120), "key-of-many");
  const HttpClient guest(cluster_->http_address(), std::chrono::seconds(120), "key-of-few");
  std::atomic<int> flood_done{0};
  std::vector<std::future<Completion>> flood;
  for (int i = 0; i < kFlood; ++i) {
    flood.push_back(std::async(std::launch::async, [&] {
      Completion completion = Complete(flooding, request);
      ++flood_done;
      return completion;
    }));
  }
  // All of them are there, and one has run.
  ASSERT_TRUE(WaitUntil(std::chrono::seconds(60), [&] { return flood_done > 0; }));
  ASSERT_TRUE(WaitUntil(std::chrono::seconds(60), [&] {
    const Metrics rank = cluster_->MetricsOf("inference-0");
    return flood_done + rank.Value("winnow_num_requests_running") + rank.Value("winnow_num_requests_waiting") >= kFlood;
  }));
  const int done_before = flood_done;
  ASSERT_LE(done_before, kFlood - 6) << "too little of the flood is left to hold up anybody";
  for (int i = 0; i < 2; ++i) {
    const Completion completion = Complete(guest, request);
    EXPECT_TRUE(completion.ok()) << completion.error;
  }
  // One that ran when the guest came; one between its two requests; and what ends while its answers are on their way.
  EXPECT_LE(flood_done, done_before + 4);
  for (auto& one : flood) EXPECT_TRUE(one.get().ok());
}

}  // namespace
}  // namespace winnow::e2e
