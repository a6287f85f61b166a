// API keys share a rank: who sends many requests waits behind them alone.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
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

// Keys with weights: of two that always have something waiting, one gets three times the other's tokens.
TEST(KeyWeights, AreTheRatioOfService) {
  const std::string file = testing::TempDir() + "/key-weights";
  std::ofstream(file) << "# shares\n3 key-of-three\n";
  const auto cluster =
      StartOrFail({"--budget=256", "--max-context=8192", "--max-running=1", "--age-bound=0s", "--key-weights=" + file});
  ASSERT_NE(cluster, nullptr);
  const Json request = GreedyRequest(DemoCaseOfAtLeast(500).prompt, 100);
  std::atomic<bool> stop{false};
  const auto keep_busy = [&](const char* key, std::atomic<int>& answers) {
    const HttpClient client(cluster->http_address(), std::chrono::seconds(120), key);
    while (!stop) {
      const Completion completion = Complete(client, request);
      ASSERT_TRUE(completion.ok()) << completion.error;
      ++answers;
    }
  };
  std::atomic<int> three{0}, one{0};
  std::vector<std::future<void>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::async(std::launch::async, [&] { keep_busy("key-of-three", three); }));
    clients.push_back(std::async(std::launch::async, [&] { keep_busy("key-of-one", one); }));
  }
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(60), [&] { return one >= 8; }));
  stop = true;
  const int with_three = three, with_one = one;
  for (auto& client : clients) client.get();
  // The first prompts are computed by whoever comes first; all others are cached.
  EXPECT_NEAR(with_three, 3 * with_one, 5);
}

}  // namespace
}  // namespace winnow::e2e
