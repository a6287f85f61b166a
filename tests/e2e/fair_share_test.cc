// API keys share a rank: who sends many requests waits behind them alone.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>

#include "router/keys/key_file.h"
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

// Requests of the flood take long, so that how late a client hears of an end does not matter.
TEST_F(FairShare, AFloodOfOneKeyDoesNotHoldUpAnother) {
  constexpr int kFlood = 12;
  const TokenIds prompt = DemoCaseOfAtLeast(500).prompt;
  const Json long_request = GreedyRequest(prompt, 1000), short_request = GreedyRequest(prompt, 20);
  const HttpClient flooding(cluster_->http_address(), std::chrono::seconds(120), "key-of-many");
  const HttpClient guest(cluster_->http_address(), std::chrono::seconds(120), "key-of-few");
  std::atomic<int> flood_done{0};
  std::atomic<bool> enough{false};
  std::vector<std::future<void>> flood;
  for (int i = 0; i < kFlood; ++i) {
    flood.push_back(std::async(std::launch::async, [&] {
      const Completion completion = StreamCompletion(flooding, long_request, [&](size_t) { return !enough; });
      EXPECT_TRUE(completion.ok() || enough) << completion.error;
      ++flood_done;
    }));
  }
  // All of them are there, and one has run.
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(100), [&] {
    const Metrics rank = cluster_->MetricsOf("inference-0");
    const double there = rank.Value("winnow_num_requests_running") + rank.Value("winnow_num_requests_waiting");
    return flood_done > 0 && flood_done + there >= kFlood;
  }));
  const int done_before = flood_done;
  EXPECT_LE(done_before, kFlood - 6) << "too little of the flood is left to hold up anybody";
  for (int i = 0; i < 2; ++i) {
    const Completion completion = Complete(guest, short_request);
    EXPECT_TRUE(completion.ok()) << completion.error;
  }
  // One that ran when the guest came, one between its two requests, and one whose end was not heard of before.
  EXPECT_LE(flood_done, done_before + 3);
  enough = true;
  for (auto& one : flood) one.get();
}

// Keys with weights: of two that always have something waiting, one gets three times the other's tokens.
TEST(ApiKeyWeights, AreTheRatioOfService) {
  const std::string file = testing::TempDir() + "/weighted-keys.yaml";
  KeyFile keys;
  std::map<std::string, std::string> texts;
  for (const auto& [name, weight] : {std::pair{"three", 3.0}, std::pair{"one", 1.0}}) {
    ApiKey key;
    key.name = name;
    key.weight = weight;
    texts[name] = IssueSecret(key);
    keys.keys.push_back(key);
  }
  ASSERT_TRUE(keys.Save(file).ok());
  const auto cluster =
      StartOrFail({"--budget=256", "--max-context=8192", "--max-running=1", "--age-bound=0s", "--api-keys=" + file});
  ASSERT_NE(cluster, nullptr);
  const Json request = GreedyRequest(DemoCaseOfAtLeast(500).prompt, 100);
  std::atomic<bool> stop{false};
  const auto keep_busy = [&](const std::string& key, std::atomic<int>& answers) {
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
    clients.push_back(std::async(std::launch::async, [&] { keep_busy(texts["three"], three); }));
    clients.push_back(std::async(std::launch::async, [&] { keep_busy(texts["one"], one); }));
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
