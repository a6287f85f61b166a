// A cache rank that stops for a while, longer than the router waits for it, and goes on.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr int kRequests = 4, kTokens = 200;

double SequencesOn(const Cluster& cluster, const char* rank) {
  return cluster.MetricsOf(rank).Value("winnow_sequences");
}

TEST(StoppedCacheRank, KeepsNothingOfRequestsThatWentOnElsewhere) {
  const auto cluster = StartOrFail({"--cache-ranks=2", "--budget=256", "--max-context=8192"});
  ASSERT_NE(cluster, nullptr);
  std::atomic<int> decoding = 0;
  std::vector<std::future<Completion>> answers;
  for (int i = 0; i < kRequests; ++i) {
    answers.push_back(std::async(std::launch::async, [&, i] {
      bool counted = false;
      return StreamCompletion(cluster->http(), GreedyRequest(DemoText(1500, 700 * i), kTokens), [&](size_t tokens) {
        if (tokens >= 5 && !std::exchange(counted, true)) ++decoding;
        return true;
      });
    }));
  }
  ASSERT_TRUE(WaitUntil(milliseconds(60'000), [&] { return decoding == kRequests; }));
  ASSERT_GE(SequencesOn(*cluster, "cache-0"), 1) << "requests are spread over cache ranks";
  const pid_t stopped = cluster->Pids("cache-rank")[0];
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  for (auto& answer : answers) {
    const Completion completion = answer.get();
    EXPECT_TRUE(completion.ok()) << completion.error;
  }
  ASSERT_EQ(kill(stopped, SIGCONT), 0);
  // Far less than the minute for which a cache rank keeps what it is told nothing about.
  EXPECT_TRUE(WaitUntil(milliseconds(20'000),
                        [&] { return SequencesOn(*cluster, "cache-0") == 0 && SequencesOn(*cluster, "cache-1") == 0; }))
      << SequencesOn(*cluster, "cache-0") << " and " << SequencesOn(*cluster, "cache-1");
}

}  // namespace
}  // namespace winnow::e2e
