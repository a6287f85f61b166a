// Models whose linear attention keeps a state in the place of rows. The cache rank has it as of some positions: what is
// computed again when a rank is lost, and that nothing but that tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <string>

#include "tests/e2e/generation_calls.h"
#include "tests/e2e/model_cluster.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::e2e {
namespace {

using testing::ElementsAreArray;

class HybridModels : public ModelCluster<const char*> {
 protected:
  HybridModels() {
    // States of 3 MiB, which take several frames.
    WriteTinyCheckpoint({.family = ModelFamily::kQwen3Next,
                         .num_layers = 5,
                         .max_position_embeddings = 4096,
                         .extra_fields = {{"linear_num_key_heads", 4},
                                          {"linear_num_value_heads", 16},
                                          {"linear_key_head_dim", 128},
                                          {"linear_value_head_dim", 128}}},
                        directory_.path());
  }
  static Json Request(const TokenIds& prompt, int tokens) {
    Json request = GreedyRequest(prompt, tokens);
    request["logprobs"] = 1;
    request["winnow"] = {{"selection", GetParam()}, {"budget", 32}};
    if (std::string(GetParam()) == "dense") request["winnow"].erase("budget");
    return request;
  }
  // Over all ranks of a role that live.
  double Sum(const std::string& role, const std::string& metric) const {
    double sum = 0;
    for (const std::string& rank : cluster_->ranks()) {
      if (rank.starts_with(role)) sum += std::max(0.0, cluster_->MetricsOf(rank).Value(metric));
    }
    return sum;
  }
};

// Chunks of any length, one that is no multiple of a block, and layer by layer.
TEST_P(HybridModels, WhereAPromptIsCutChangesNoBit) {
  Completion whole;
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--prefill-chunk=4096"},
                                                {"--prefill-chunk=17"},
                                                {"--prefill-chunk=64"},
                                                {"--prefill=layered"}}) {
    SCOPED_TRACE(flags.front());
    Start(flags);
    const Completion answer = Ask(Request(Prompt(333, 4), 40));
    if (whole.ids.empty()) whole = answer;
    EXPECT_EQ(answer.ids, whole.ids);
    EXPECT_EQ(LogProbs(answer), LogProbs(whole));
  }
}

// Late in the answer: from the last state on, of every 64th position, and no token of the prompt.
TEST_P(HybridModels, ALostRankCostsTheTokensSinceTheLastState) {
  constexpr int kLong = 500;
  Start({"--inference-ranks=2"});
  const std::vector<pid_t> pids = cluster_->Pids("inference-rank");
  const Json request = Request(Prompt(300, 5), kLong);
  const Completion undisturbed = Ask(request);
  size_t tokens_at_kill = 0, survivor = 0;
  double computed = 0;
  const auto of = [&](size_t rank, const char* metric) {
    return cluster_->MetricsOf("inference-" + std::to_string(rank)).Value(metric);
  };
  const Completion disturbed = StreamCompletion(cluster_->http(), request, [&](size_t tokens) {
    for (size_t rank = 0; rank < 2 && tokens_at_kill == 0 && tokens >= 150; ++rank) {
      if (of(rank, "winnow_num_requests_running") < 1) continue;
      survivor = 1 - rank;
      computed = of(survivor, "winnow_rank_prompt_tokens_total");
      kill(pids[rank], SIGKILL);
      tokens_at_kill = tokens;
    }
    return true;
  });
  ASSERT_GT(tokens_at_kill, 0u) << "no rank was killed";
  EXPECT_TRUE(disturbed.ok()) << disturbed.error;
  EXPECT_EQ(disturbed.ids, undisturbed.ids);
  EXPECT_GE(disturbed.Stat("reattach_count"), 1);
  EXPECT_EQ(of(survivor, "winnow_rank_prompt_tokens_total"), computed) << "the prompt was computed again";
  // What came after the last state that was stored, and the answer's rest.
  const double repeated = disturbed.Stat("decode_steps") - static_cast<double>(kLong - tokens_at_kill);
  EXPECT_LE(repeated, 2 * 64 + 8);
  EXPECT_GT(Sum("cache", "winnow_state_snapshots_total"), 2);
}

// Within a prompt: from the end of a chunk whose state is stored.
TEST_P(HybridModels, APromptGoesOnWhereItsRankIsKilled) {
  const Json request = Request(Prompt(3900, 6), 20);
  Start({"--inference-ranks=2", "--prefill-chunk=32"});
  const Completion undisturbed = Ask(request);
  double kept = 0;
  for (int attempt = 0; attempt < 8 && kept <= 0; ++attempt) {
    SCOPED_TRACE(attempt);
    Start({"--inference-ranks=2", "--prefill-chunk=32"});
    const std::vector<pid_t> pids = cluster_->Pids("inference-rank");
    std::future<Completion> answer = std::async(std::launch::async, [&] { return Ask(request); });
    bool killed = false;
    while (!killed && answer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      for (size_t rank = 0; rank < 2 && !killed; ++rank) {
        const Metrics metrics = cluster_->MetricsOf("inference-" + std::to_string(rank));
        if (metrics.Value("winnow_rank_prompt_tokens_total") < 500) continue;
        kill(pids[rank], SIGKILL);
        killed = true;
      }
    }
    const Completion disturbed = answer.get();
    EXPECT_EQ(disturbed.ids, undisturbed.ids);
    EXPECT_EQ(LogProbs(disturbed), LogProbs(undisturbed));
    kept = Sum("inference", "winnow_rank_kept_prompt_tokens_total");
  }
  EXPECT_GE(kept, 400) << "nothing of a prompt was kept";
}

TEST_P(HybridModels, ALostCacheRankIsFollowedByTheSameAnswer) {
  for (const char* replicas : {"--replicas=1", "--replicas=2"}) {
    SCOPED_TRACE(replicas);
    Start({"--cache-ranks=2", replicas});
    const std::vector<pid_t> pids = cluster_->Pids("cache-rank");
    const Json request = Request(Prompt(200, 8), 300);
    const Completion undisturbed = Ask(request);
    bool killed = false;
    const Completion disturbed = StreamCompletion(cluster_->http(), request, [&](size_t tokens) {
      for (size_t rank = 0; rank < 2 && !killed && tokens >= 100; ++rank) {
        const Metrics metrics = cluster_->MetricsOf("cache-" + std::to_string(rank));
        if (metrics.Value("winnow_sequences", {{"state", "active"}}) < 1) continue;
        kill(pids[rank], SIGKILL);
        killed = true;
      }
      return true;
    });
    EXPECT_TRUE(killed);
    EXPECT_TRUE(disturbed.ok()) << disturbed.error;
    EXPECT_EQ(disturbed.ids, undisturbed.ids);
  }
}

// To the rank that decodes the state of the prompt's end comes from the cache rank.
TEST_P(HybridModels, RanksForPrefillHandTheirStateOver) {
  Start();
  const Json request = Request(Prompt(700, 9), 60);
  const Completion together = Ask(request);
  Start({"--prefill-ranks=1", "--decode-ranks=1"});
  const Completion apart = Ask(request);
  EXPECT_EQ(apart.ids, together.ids);
  EXPECT_EQ(LogProbs(apart), LogProbs(together));
  EXPECT_EQ(Sum("decode", "winnow_rank_prompt_tokens_total"), 0) << "the prompt was computed again";
}

TEST_P(HybridModels, SamplesOfAPromptAreWhatTheyAreAlone) {
  constexpr uint32_t kSamples = 3;
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--prefill-ranks=1", "--decode-ranks=1"}}) {
    Start(flags);
    v1::GenerateRequest request = SamplesOf(GetParam(), Prompt(333, 2), kSamples, 90);
    GenerationClient client(*cluster_);
    const Answer together = client.Generate(request)->Finish();
    ASSERT_TRUE(together.status.ok()) << together.status.error_message();
    EXPECT_EQ(Sum("", "winnow_rank_prompt_tokens_total"), 333) << "once for all";
    request.set_n(1);
    for (uint32_t i = 0; i < kSamples; ++i) {
      request.mutable_sampling()->set_sample_index(i);
      const Answer alone = client.Generate(request)->Finish();
      ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
      EXPECT_THAT(together.ids(i), ElementsAreArray(alone.ids())) << "sample " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Selections, HybridModels, testing::Values("dense", "winnow"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace winnow::e2e
