// What becomes of answers that are decoded from GPU to GPU when a rank, its GPU or a row on the way is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <future>

#include "tests/e2e/golden.h"
#include "tests/e2e/peer_cluster.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

class PeerFailures : public testing::TestWithParam<PeerPlacement> {};
INSTANTIATE_TEST_SUITE_P(Placements, PeerFailures, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return std::string(info.param.name); });

// The rows of a peer link are in host memory, too: another inference rank goes on with them.
TEST_P(PeerFailures, AnotherRankGoesOnAfterOneIsKilled) {
  std::vector<std::string> flags = PeerFlags("depth", GetParam(), /*ranks=*/2);
  flags.push_back("--inference-ranks=2");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  const TokenIds alone = IdsOf(*cluster, prompt, 60);
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
TEST_P(PeerFailures, APromptIsFinishedAfterARankIsKilledInTheMiddleOfIt) {
  for (const bool kills_cache : {false, true}) {
    std::vector<std::string> flags = PeerFlags("depth", GetParam(), kills_cache ? 1 : 2, kills_cache ? 1 : 0);
    if (!kills_cache) flags.push_back("--inference-ranks=2");
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
      const bool first = ActiveOn(*cluster, "cache-0") > 0;
      kill(cluster->Pids("cache-rank")[first ? 0 : 1], SIGKILL);
    } else {
      kill(cluster->Pids("inference-rank")[chunks("inference-0") >= 5 ? 0 : 1], SIGKILL);
    }
    const Completion completion = answer.get();
    ASSERT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, IdsOf(*cluster, prompt)) << (kills_cache ? "cache rank" : "inference rank");
  }
}

// A GPU error is final for an inference rank, and its sequences are where they were.
TEST_P(PeerFailures, AnotherRankGoesOnAfterAGpuHasFailed) {
  const TempDir folder;
  const std::string fault = folder.path() + "/fault";
  std::vector<std::string> flags = PeerFlags("depth", GetParam(), /*ranks=*/2);
  flags.push_back("--inference-ranks=2");
  const auto cluster = StartCluster(flags, {{"WINNOW_HOST_GPU_FAULT", fault}});
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  const TokenIds alone = IdsOf(*cluster, prompt, 60);
  const std::vector<pid_t> ranks = cluster->Pids("inference-rank");
  std::optional<size_t> failed;
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(prompt, 60), [&](size_t tokens) {
    if (tokens < 20 || failed.has_value()) return true;
    failed = cluster->MetricsOf("inference-0").Value("winnow_num_requests_running") > 0 ? 0 : 1;
    std::ofstream(fault) << ranks[*failed];
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids, alone);
  EXPECT_GE(completion.Stat("reattach_count"), 1);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("GPU failure"));
  EXPECT_TRUE(WaitUntil(std::chrono::milliseconds(20'000), [&] { return !IsAlive(ranks[failed.value()]); }));
}

// A cache rank holds sequences in host memory, and goes on without its GPU.
TEST_P(PeerFailures, AnswersGoOnByFramesAfterACacheRanksGpuHasFailed) {
  const TempDir folder;
  const std::string fault = folder.path() + "/fault";
  const auto cluster = StartCluster(PeerFlags("depth", GetParam()), {{"WINNOW_HOST_GPU_FAULT", fault}});
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  const TokenIds alone = IdsOf(*cluster, prompt, 60);
  const pid_t cache_rank = cluster->Pids("cache-rank")[0];
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(prompt, 60), [&](size_t tokens) {
    if (tokens == 20) std::ofstream(fault) << cache_rank;
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids, alone);
  EXPECT_GE(completion.Stat("reattach_count"), 1);
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", "recompute"}}), 0) << "rows lost";
  EXPECT_EQ(cluster->Pids("cache-rank")[0], cache_rank) << "it has not been started again";
  EXPECT_EQ(ValueOf(*cluster, "winnow_peer_links_failed_total"), 1);
  const std::string log = cluster->process().Log();
  EXPECT_THAT(log, HasSubstr("the peer link to inference-0 has ended, its sequences go on by frames"));
  EXPECT_THAT(log, HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_THAT(log, HasSubstr("go by frames from now on: the peer link has failed"));
}

// Digests of what is attended to are compared step by step.
TEST_P(PeerFailures, RowsThatAreDamagedOnTheWayEndThePeerLink) {
  const TempDir folder;
  const std::string flip = folder.path() + "/flip";
  const auto cluster = StartCluster(PeerFlags("depth", GetParam()), {{"WINNOW_HOST_GPU_FLIP", flip}});
  ASSERT_NE(cluster, nullptr);
  const Completion completion =
      StreamCompletion(cluster->http(), GreedyRequest(DemoCaseOfAtLeast(2000).prompt, 60), [&](size_t tokens) {
        if (tokens == 20) std::ofstream(flip) << "on";
        return true;
      });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), 60u);
  EXPECT_EQ(ValueOf(*cluster, "winnow_peer_links_failed_total"), 1);
  EXPECT_GE(PeerSteps(*cluster), 15);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("are not those that the cache rank holds"));
}

// What a cache rank loses is prefilled again at another one.
TEST_P(PeerFailures, AnAnswerEndsAfterItsCacheRankIsKilled) {
  const std::vector<std::string> flags = PeerFlags("depth", GetParam(), 1, /*spare_cache_ranks=*/1);
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  bool killed = false;
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(DemoText(900), 40), [&](size_t tokens) {
    if (tokens < 15 || std::exchange(killed, true)) return true;
    const bool first = ActiveOn(*cluster, "cache-0") > 0;
    kill(cluster->Pids("cache-rank")[first ? 0 : 1], SIGKILL);
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_TRUE(killed);
  EXPECT_EQ(completion.ids.size(), 40u);
}

}  // namespace
}  // namespace winnow::e2e
