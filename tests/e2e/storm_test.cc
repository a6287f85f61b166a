// Many requests at once, some of which are given up by their clients: the others finish, and nothing is left behind.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

constexpr int kStreams = 64;

struct SmallBatch {
  // Fewer places than streams, so that some wait.
  static Cluster::Options Options() { return {.flags = {"--budget=128", "--max-running=16", "--max-context=4096"}}; }
};

class Storm : public SharedCluster<SmallBatch> {
 protected:
  static std::string WhatIsLeft() {
    const Metrics router = cluster_->MetricsOf("router-0"), inference = cluster_->MetricsOf("inference-0"),
                  cache = cluster_->MetricsOf("cache-0");
    const std::vector<std::pair<std::string, double>> values = {
        {"requests running at the router", router.Value("winnow_num_requests_running")},
        {"requests waiting at the router", router.Value("winnow_num_requests_waiting")},
        {"sequences running", inference.Value("winnow_num_requests_running")},
        {"sequences waiting", inference.Value("winnow_num_requests_waiting")},
        {"slot pages", inference.Value("winnow_slot_pages", {{"state", "used"}})},
        {"prefill bytes", inference.Value("winnow_prefill_kv_bytes")},
        {"blocks used", cache.Value("winnow_kv_blocks", {{"state", "used"}})},
        {"blocks reserved", cache.Value("winnow_kv_blocks", {{"state", "reserved"}})},
        {"sequences at the cache rank", cache.Value("winnow_sequences")}};
    std::string left;
    for (const auto& [name, value] : values) {
      if (value != 0) left += name + ": " + std::to_string(value) + "\n";
    }
    return left;
  }

  static std::map<pid_t, int> Fds() {
    std::map<pid_t, int> fds;
    for (const pid_t pid : cluster_->AllPids()) fds[pid] = CountFds(pid);
    return fds;
  }

  static std::string MoreFdsThan(const std::map<pid_t, int>& baseline) {
    std::string more;
    for (const auto& [pid, fds] : Fds()) {
      const auto before = baseline.find(pid);
      if (before == baseline.end() || fds > before->second) {
        more += SubcommandOf(pid) + ": " + std::to_string(fds) + " descriptors\n";
      }
    }
    return more;
  }
};

TEST_F(Storm, LeavesNothingBehind) {
  // Connections that are made once and stay are part of the baseline.
  ASSERT_TRUE(Complete(cluster_->http(), GreedyRequest(DemoText(100), 4)).ok());
  ASSERT_TRUE(WaitUntil(std::chrono::seconds(20), [] { return WhatIsLeft().empty(); })) << WhatIsLeft();
  const std::map<pid_t, int> baseline = Fds();

  std::atomic<int> finished{0}, cancelled{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([i, &finished, &cancelled] {
      std::mt19937 random(i);
      const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
      const int prompt_tokens = i % 8 == 0 ? pick(800, 1600) : pick(10, 300);
      const int tokens = pick(8, 40);
      const bool gives_up = i % 3 == 0;
      const size_t gives_up_after = pick(1, 6);
      const Completion completion =
          StreamCompletion(cluster_->http(), GreedyRequest(DemoText(prompt_tokens, 97 * i), tokens),
                           [&](size_t so_far) { return !gives_up || so_far < gives_up_after; });
      EXPECT_EQ(completion.status, 200) << completion.error;
      EXPECT_EQ(completion.error, "");
      if (gives_up) {
        ++cancelled;
        return;
      }
      EXPECT_EQ(completion.ids.size(), static_cast<size_t>(tokens));
      EXPECT_EQ(completion.finish_reason, "length");
      ++finished;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(finished + cancelled, kStreams);
  EXPECT_GT(cancelled, 0);

  EXPECT_TRUE(WaitUntil(std::chrono::seconds(10), [] { return WhatIsLeft().empty(); })) << WhatIsLeft();
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(10), [&] { return MoreFdsThan(baseline).empty(); }))
      << MoreFdsThan(baseline);
}

// A client that goes away before its first token, while its prompt is computed or waits, is forgotten too.
TEST_F(Storm, ForgetsRequestsThatNeverBegan) {
  const HttpClient hasty(cluster_->http_address(), std::chrono::milliseconds(50));
  for (int i = 0; i < 8; ++i) hasty.Post("/v1/completions", GreedyRequest(DemoText(3000, 31 * i), 64));
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(15), [] { return WhatIsLeft().empty(); })) << WhatIsLeft();
  EXPECT_TRUE(Complete(cluster_->http(), GreedyRequest(DemoText(50), 4)).ok());
}

}  // namespace
}  // namespace winnow::e2e
