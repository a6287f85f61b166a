// An inference rank that is killed in the middle of an answer leaves no trace in it.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr int kTokens = 240;

struct TwoInferenceRanks {
  static Cluster::Options Options() { return {.flags = {"--inference-ranks=2", "--budget=256", "--max-context=8192"}}; }
};

class Failover : public SharedCluster<TwoInferenceRanks> {
 protected:
  // "inference-0" or the other one, whichever has a sequence; empty when none has.
  static std::string BusyRank() {
    for (const char* rank : {"inference-0", "inference-1"}) {
      if (cluster_->MetricsOf(rank).Value("winnow_num_requests_running") >= 1) return rank;
    }
    return "";
  }

  // Which process is which rank: in the order of start at first; later the new process has the name of the lost one.
  static void LearnPids() {
    const std::vector<pid_t> pids = cluster_->Pids("inference-rank");
    if (pids_.empty()) {
      ASSERT_EQ(pids.size(), 2u);
      pids_ = {{"inference-0", pids[0]}, {"inference-1", pids[1]}};
      return;
    }
    for (auto& [rank, pid] : pids_) {
      if (std::count(pids.begin(), pids.end(), pid) > 0) continue;
      for (const pid_t candidate : pids) {
        const bool known =
            std::any_of(pids_.begin(), pids_.end(), [&](const auto& p) { return p.second == candidate; });
        if (!known) pid = candidate;
      }
    }
  }

  static bool BothRanksServe() {
    return cluster_->MetricsOf("router-0").Value("winnow_router_ranks", {{"kind", "inference"}}) == 2;
  }

  static std::map<std::string, pid_t> pids_;
};
std::map<std::string, pid_t> Failover::pids_;

TEST_F(Failover, TokensAreThoseOfAnUndisturbedRun) {
  for (const char* preset : {"winnow", "depth", "async-token"}) {
    SCOPED_TRACE(preset);
    ASSERT_TRUE(WaitUntil(milliseconds(30'000), BothRanksServe)) << "a killed rank has not come back";
    LearnPids();
    Json request = GreedyRequest(DemoCaseOfAtLeast(1600).prompt, kTokens);
    request["winnow"] = {{"selection", preset}};
    const Completion undisturbed = Complete(cluster_->http(), request);
    ASSERT_TRUE(undisturbed.ok()) << undisturbed.error;
    ASSERT_GT(undisturbed.Stat("streamed_rows"), 0) << "nothing was selected";

    size_t tokens_at_kill = 0;
    const Completion disturbed = StreamCompletion(cluster_->http(), request, [&](size_t tokens) {
      if (tokens_at_kill == 0 && tokens >= 10) {
        const std::string busy = BusyRank();
        if (!busy.empty()) {
          kill(pids_.at(busy), SIGKILL);
          tokens_at_kill = tokens;
        }
      }
      return true;
    });
    ASSERT_GT(tokens_at_kill, 0u) << "no rank was killed";
    EXPECT_LT(tokens_at_kill, kTokens - 20u) << "it was killed too late to matter";
    EXPECT_TRUE(disturbed.ok()) << disturbed.error;
    EXPECT_EQ(disturbed.ids, undisturbed.ids);
    EXPECT_EQ(disturbed.text, undisturbed.text);
    EXPECT_EQ(disturbed.finish_reason, "length");
    EXPECT_GE(disturbed.Stat("reattach_count"), 1);
  }
  const Metrics router = cluster_->MetricsOf("router-0");
  EXPECT_GE(router.Value("winnow_failovers_total", {{"mode", "reattach"}}), 3);
  EXPECT_EQ(router.Value("winnow_router_mismatched_tokens_total"), 0);
}

// Without the KV the request is computed again; it finishes, with the tokens that were sent already.
TEST_F(Failover, ALostCacheRankIsPrefilledAgain) {
  ASSERT_TRUE(WaitUntil(milliseconds(30'000), BothRanksServe));
  const Json request = GreedyRequest(DemoCaseOfAtLeast(1600).prompt, kTokens);  // not all of which are under way
  const pid_t cache_rank = cluster_->Pids("cache-rank").at(0);
  bool killed = false;
  const Completion completion = StreamCompletion(cluster_->http(), request, [&](size_t tokens) {
    if (!killed && tokens >= 10) killed = kill(cache_rank, SIGKILL) == 0;
    return true;
  });
  ASSERT_TRUE(killed);
  EXPECT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), size_t{kTokens});
  EXPECT_GE(cluster_->MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", "recompute"}}), 1);
}

}  // namespace
}  // namespace winnow::e2e
