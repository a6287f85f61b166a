// Decode steps that run between an inference rank's GPU and a cache rank's, here GPUs made of host memory whose
// processes map each other's (tests/support/host_gpu).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

constexpr int kTokens = 16;

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags) {
  for (const char* flag : {"--device=cuda", "--budget=256", "--max-context=4096", "--max-running=4"}) {
    flags.push_back(flag);
  }
  return StartOrFail(std::move(flags), {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}});
}
// Of one inference rank; each rank has a GPU of its own.
std::vector<std::string> LaneFlags(const std::string& selection) {
  return {"--cache-device=cuda:1", "--transport=p2p", "--selection=" + selection};
}

TokenIds Answer(const Cluster& cluster, const TokenIds& prompt, int tokens = kTokens) {
  const Completion completion = Complete(cluster.http(), GreedyRequest(prompt, tokens));
  EXPECT_TRUE(completion.ok()) << completion.error;
  return completion.ids;
}

double LaneSteps(const Cluster& cluster) {
  return cluster.MetricsOf("inference-0").Value("winnow_lane_steps_total");
}

// Keys are scored as they are stored, so that both ways select alike up to the roundings of scores.
TEST(Lane, AnswersAreThoseOfFrames) {
  for (const char* selection : {"depth", "exact-token", "async-token"}) {
    std::vector<TokenIds> by_frames;
    const auto prompts = {DemoCaseOfAtLeast(2000).prompt, DemoText(700, 3), DemoText(40, 5)};
    {
      const auto cluster = StartCluster({std::string("--selection=") + selection, "--transport=ucx"});
      ASSERT_NE(cluster, nullptr);
      for (const TokenIds& prompt : prompts) by_frames.push_back(Answer(*cluster, prompt));
      EXPECT_EQ(LaneSteps(*cluster), 0);
      EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_pushed_prompt_rows_total"), 0);
    }
    const auto cluster = StartCluster(LaneFlags(selection));
    ASSERT_NE(cluster, nullptr);
    std::vector<TokenIds> by_lane;
    for (const TokenIds& prompt : prompts) by_lane.push_back(Answer(*cluster, prompt));
    EXPECT_EQ(by_lane, by_frames) << selection;
    EXPECT_EQ(LaneSteps(*cluster), 3 * (kTokens - 1)) << selection;
    EXPECT_GE(cluster->MetricsOf("inference-0").Value("winnow_pushed_prompt_rows_total"),
              cluster->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"));
    EXPECT_EQ(cluster->MetricsOf("cache-0").Value("winnow_lane_plans_total"), 3 * (kTokens - 1));
    EXPECT_THAT(cluster->process().Log(), HasSubstr("run from GPU to GPU"));
  }
}

// Sequences come and go: more requests than seats, of different lengths, some of which are given up.
TEST(Lane, AnswersAreTheSameAloneOrInABatch) {
  const auto cluster = StartCluster(LaneFlags("winnow"));
  ASSERT_NE(cluster, nullptr);
  std::vector<TokenIds> prompts, alone;
  for (size_t i = 0; i < 8; ++i) prompts.push_back(DemoText(100 + 250 * i, i));
  for (size_t i = 0; i < prompts.size(); ++i)
    alone.push_back(Answer(*cluster, prompts[i], 6 + 3 * static_cast<int>(i)));
  std::vector<std::future<TokenIds>> together;
  for (size_t i = 0; i < prompts.size(); ++i) {
    together.push_back(
        std::async(std::launch::async, [&, i] { return Answer(*cluster, prompts[i], 6 + 3 * static_cast<int>(i)); }));
  }
  const auto given_up = std::async(std::launch::async, [&] {
    StreamCompletion(cluster->http(), GreedyRequest(DemoText(300, 20), 200), [](size_t tokens) { return tokens < 5; });
  });
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[i].get(), alone[i]) << i;
  given_up.wait();
  EXPECT_GT(LaneSteps(*cluster), 0);
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_lanes_failed_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

// A request with a selection of its own has no seat, and is answered beside those that have.
TEST(Lane, OtherSelectionsGoByFrames) {
  const auto cluster = StartCluster(LaneFlags("winnow"));
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  Json request = GreedyRequest(prompt, kTokens);
  request["winnow"] = {{"selection", "async-token"}};
  auto by_frames = std::async(std::launch::async, [&] { return Complete(cluster->http(), request); });
  const TokenIds on_lane = Answer(*cluster, prompt);
  const Completion completion = by_frames.get();
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(on_lane.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(LaneSteps(*cluster), kTokens - 1);
}

// The rows of a lane are in host memory, too: another inference rank goes on with them.
TEST(Lane, AnotherRankGoesOnAfterOneIsKilled) {
  std::vector<std::string> flags = LaneFlags("depth");
  flags[0] = "--cache-device=cuda:2";
  flags.push_back("--inference-ranks=2");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  const TokenIds alone = Answer(*cluster, prompt, 60);
  bool killed = false;
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(prompt, 60), [&](size_t tokens) {
    if (tokens < 20 || std::exchange(killed, true)) return true;
    // The rank that has it is not known: the one that has run more steps since.
    const bool first = cluster->MetricsOf("inference-0").Value("winnow_num_requests_running") > 0;
    kill(cluster->Pids("inference-rank")[first ? 0 : 1], SIGKILL);
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_TRUE(killed);
  EXPECT_EQ(completion.ids, alone);
}

// Rows that were pushed lie on the cache rank, or are pushed again by the rank that takes over; and where a cache rank
// ends, by the one that had pushed them.
TEST(Lane, APromptIsFinishedAfterARankIsKilledInTheMiddleOfIt) {
  for (const bool kills_cache : {false, true}) {
    std::vector<std::string> flags = LaneFlags("depth");
    if (!kills_cache) flags[0] = "--cache-device=cuda:2";
    flags.push_back(kills_cache ? "--cache-ranks=2" : "--inference-ranks=2");
    flags.push_back("--prefill-chunk=64");
    const auto cluster = StartCluster(flags);
    ASSERT_NE(cluster, nullptr);
    const TokenIds prompt = DemoText(3500);
    auto answer =
        std::async(std::launch::async, [&] { return Complete(cluster->http(), GreedyRequest(prompt, kTokens)); });
    const auto chunks = [&](const char* rank) { return cluster->MetricsOf(rank).Value("winnow_prefill_chunks_total"); };
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto begun = [&] { return chunks("inference-0") >= 5 || (!kills_cache && chunks("inference-1") >= 5); };
    while (!begun() && std::chrono::steady_clock::now() < give_up) {
    }
    if (kills_cache) {
      const bool first = cluster->MetricsOf("cache-0").Value("winnow_sequences", {{"state", "active"}}) > 0;
      kill(cluster->Pids("cache-rank")[first ? 0 : 1], SIGKILL);
    } else {
      kill(cluster->Pids("inference-rank")[chunks("inference-0") >= 5 ? 0 : 1], SIGKILL);
    }
    const Completion completion = answer.get();
    ASSERT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, Answer(*cluster, prompt)) << (kills_cache ? "cache rank" : "inference rank");
  }
}

// What a cache rank loses is prefilled again at another one.
TEST(Lane, AnAnswerEndsAfterItsCacheRankIsKilled) {
  std::vector<std::string> flags = LaneFlags("depth");
  flags.push_back("--cache-ranks=2");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  bool killed = false;
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(DemoText(900), 40), [&](size_t tokens) {
    if (tokens < 15 || std::exchange(killed, true)) return true;
    const bool first = cluster->MetricsOf("cache-0").Value("winnow_sequences", {{"state", "active"}}) > 0;
    kill(cluster->Pids("cache-rank")[first ? 0 : 1], SIGKILL);
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_TRUE(killed);
  EXPECT_EQ(completion.ids.size(), 40u);
}

// Where a prompt was computed makes no difference to who decodes.
TEST(Lane, ARankDecodesWhatAnotherHasPrefilled) {
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  TokenIds expected;
  {
    const auto cluster = StartCluster(LaneFlags("depth"));
    ASSERT_NE(cluster, nullptr);
    expected = Answer(*cluster, prompt);
  }
  std::vector<std::string> flags = LaneFlags("depth");
  flags[0] = "--cache-device=cuda:2";
  flags.push_back("--prefill-ranks=1");
  flags.push_back("--decode-ranks=1");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(Answer(*cluster, prompt), expected);
  EXPECT_EQ(cluster->MetricsOf("decode-0").Value("winnow_lane_steps_total"), kTokens - 1);
}

// GPUs that two ranks share take turns, and a lane cannot be.
TEST(Lane, RanksOfOneGpuSayWhyTheyUseFrames) {
  std::vector<std::string> flags = LaneFlags("depth");
  flags[0] = "--cache-device=cuda:0";
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(Answer(*cluster, DemoText(700)).size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(LaneSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("both use the same GPU"));
}

}  // namespace
}  // namespace winnow::e2e
