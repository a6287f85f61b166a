// What does not go from GPU to GPU goes by frames, and the logs say why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/e2e/golden.h"
#include "tests/e2e/peer_cluster.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

// A request with a selection of its own has no batch row, and is answered beside those that have.
TEST(PeerFallback, OtherSelectionsGoByFrames) {
  const auto cluster = StartCluster(PeerFlags("winnow"));
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  Json request = GreedyRequest(prompt, kTokens);
  request["winnow"] = {{"selection", "async-token"}};
  auto by_frames = std::async(std::launch::async, [&] { return Complete(cluster->http(), request); });
  const TokenIds on_peer_link = IdsOf(*cluster, prompt);
  const Completion completion = by_frames.get();
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(on_peer_link.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(PeerSteps(*cluster), kTokens - 1);
}

// Traces are made of the frames that rows come in.
TEST(PeerFallback, TracesAreRefusedFromGpuToGpuAndToldByFrames) {
  const auto cluster = StartCluster(PeerFlags("winnow"));
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  Json request = GreedyRequest(prompt, kTokens);
  request["winnow"] = {{"trace", 16}};
  const Completion refused = Complete(cluster->http(), request);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error, HasSubstr("winnow.trace: this request's steps would go from GPU to GPU"));
  request["winnow"]["selection"] = "async-token";
  const Completion by_frames = Complete(cluster->http(), request);
  ASSERT_TRUE(by_frames.ok()) << by_frames.error;
  EXPECT_EQ(by_frames.choice["winnow"]["trace"].size(), static_cast<size_t>(kTokens - 1));
  EXPECT_EQ(IdsOf(*cluster, prompt).size(), static_cast<size_t>(kTokens)) << "the refused one holds nothing back";
  EXPECT_TRUE(WaitUntil(std::chrono::milliseconds(20'000), [&] { return ActiveOn(*cluster, "cache-0") == 0; }))
      << "an answer's end comes before its cache rank has heard of it";
}

// The guard waits for verifications, which no peer link has.
TEST(PeerFallback, GuardedSelectionsSayWhyTheyUseFrames) {
  const auto cluster = StartCluster(PeerFlags("depth,min_captured_mass=0.9"));
  ASSERT_NE(cluster, nullptr);
  const Completion completion = AnswerOf(*cluster, DemoText(900));
  EXPECT_GE(completion.Stat("captured_mass_mean"), 0.9);
  EXPECT_EQ(PeerSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(),
              HasSubstr("go by frames: a cache rank on a GPU cannot serve min_captured_mass and correction"));
}

// A peer link carries the heads of one GPU to one cache rank; what is cut otherwise goes by frames, with what the
// prefix caches have of it, too.
TEST(PeerFallback, ShardsOfOneGpusHeadsGoByFrames) {
  std::vector<std::string> flags = PeerFlags("depth", kPlacements[0], 1, /*spare_cache_ranks=*/1);
  flags.push_back("--cache-shards=2");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  const TokenIds first = IdsOf(*cluster, DemoText(900));
  EXPECT_EQ(first.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(IdsOf(*cluster, DemoText(900)), first);
  EXPECT_EQ(PeerSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("of a sequence the cache rank holds 1 kv heads and a GPU of the "
                                                  "inference rank 2, and a peer link carries those of one GPU to one"));
}

TEST(PeerFallback, GpusThatShareACacheRankSayWhyTheyUseFrames) {
  const auto cluster =
      StartCluster({"--cache-device=cuda:2", "--transport=p2p", "--selection=depth", "--tensor-parallel=2"});
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(IdsOf(*cluster, DemoText(700)).size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(PeerSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("of a sequence the cache rank holds 2 kv heads and a GPU of the "
                                                  "inference rank 1, and a peer link carries those of one GPU to one"));
}

// GPUs that two ranks share take turns, and a peer link cannot be.
TEST(PeerFallback, RanksOfOneGpuSayWhyTheyUseFrames) {
  std::vector<std::string> flags = PeerFlags("depth");
  flags[0] = "--cache-device=cuda:0";
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(IdsOf(*cluster, DemoText(700)).size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(PeerSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("both use the same GPU"));
}

}  // namespace
}  // namespace winnow::e2e
