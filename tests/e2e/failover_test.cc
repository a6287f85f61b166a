// An inference rank that is killed in the middle of an answer leaves no trace in it.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <future>
#include <map>

#include "tests/e2e/generation_calls.h"
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

// A long prompt, whose rows nobody but its own sequence keeps.
class FailoverInPrompt : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint32_t kPrompt = 7000, kChunk = 128, kAnswer = 40;

  // Kills the inference rank that computes the prompt of the request under way, a good part of which it has; returns
  // how much. The other one counts on.
  uint32_t KillInPrompt() {
    const std::vector<pid_t> pids = cluster_->Pids("inference-rank");
    const double before[] = {Computed(0), Computed(1)};
    uint32_t computed = 0;
    const bool killed = WaitUntil(milliseconds(60'000), [&] {
      for (int rank = 0; rank < 2; ++rank) {
        const double tokens = Computed(rank) - before[rank];
        if (tokens < kPrompt / 4) continue;
        computed = static_cast<uint32_t>(tokens);
        survivor_ = 1 - rank;
        survivor_computed_ = before[1 - rank];
        return kill(pids.at(static_cast<size_t>(rank)), SIGKILL) == 0;
      }
      return false;
    });
    EXPECT_TRUE(killed);
    return computed;
  }
  double Computed(int rank) const {
    return cluster_->MetricsOf(absl::StrCat("inference-", rank)).Value("winnow_rank_prompt_tokens_total");
  }
  double Kept() const {
    return cluster_->MetricsOf(absl::StrCat("inference-", survivor_)).Value("winnow_rank_kept_prompt_tokens_total");
  }

  const std::unique_ptr<Cluster> cluster_ = StartOrFail(
      {"--inference-ranks=2", "--budget=256", "--max-context=8192", "--prefix-cache=false", "--prefill-chunk=128"});
  int survivor_ = 0;
  double survivor_computed_ = 0;
};

// What was computed between the question for the counter and the end of the rank is not known to be stored; beyond
// that at most two chunks are computed twice: one that was under way, and one whose rows were.
TEST_P(FailoverInPrompt, ThePromptGoesOnWhereItsRowsEnd) {
  ASSERT_NE(cluster_, nullptr);
  const TokenIds prompt = DemoText(kPrompt, 300);
  GenerationClient client(*cluster_);
  const uint32_t samples = GetParam();
  v1::GenerateRequest request = SamplesOf("winnow", prompt, samples, kAnswer);
  if (samples == 1) request.mutable_sampling()->set_temperature(0);
  const Answer undisturbed = client.Generate(request)->Finish();
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  std::future<Answer> under_way = std::async(std::launch::async, [&] { return client.Generate(request)->Finish(); });
  const uint32_t computed = KillInPrompt();
  const Answer disturbed = under_way.get();
  ASSERT_TRUE(disturbed.status.ok()) << disturbed.status.error_message();
  for (uint32_t i = 0; i < samples; ++i) EXPECT_EQ(disturbed.ids(i), undisturbed.ids(i)) << "sample " << i;
  // A further sample, which had no sequence yet, waits for the first one's prompt again.
  const double again = Computed(survivor_) - survivor_computed_;
  EXPECT_LE(again, kPrompt - computed + 2 * kChunk);
  EXPECT_GE(Kept() + 2 * kChunk, computed);
  EXPECT_EQ(Kept() + again, kPrompt);
}
INSTANTIATE_TEST_SUITE_P(Samples, FailoverInPrompt, testing::Values(1u, 2u));

}  // namespace
}  // namespace winnow::e2e
