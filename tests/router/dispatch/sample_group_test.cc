#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/router/dispatch/dispatcher_fixture.h"

namespace winnow::test {
namespace {

// Samples of one prompt, and forks.
class SampleGroupTest : public DispatcherTest {};

TEST_F(SampleGroupTest, SamplesOfOneGroupShareTheirRanks) {
  ScriptedRank a("inference-0");
  ScriptedRank b("inference-1");
  StartDispatcher({a.identity(), b.identity(), CacheRank("cache-0"), CacheRank("cache-1")});
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<std::unique_ptr<TokenStream>> streams;
  auto start = [&](uint64_t group) {
    TokenRequest request = Request();
    request.group = group;
    recorders.push_back(std::make_unique<Recorder>());
    streams.push_back(Start(request, recorders.back().get()));
  };
  for (int i = 0; i < 4; ++i) start(1);
  for (int i = 0; i < 4; ++i) start(2);
  std::set<std::string> caches;
  for (size_t i = 1; i <= 4; ++i) {
    caches.insert("a" + a.AwaitSubmit(i).cache_ranks(0).rank());
    caches.insert("b" + b.AwaitSubmit(i).cache_ranks(0).rank());
  }
  EXPECT_EQ(caches.size(), 2u);
}

TEST_F(SampleGroupTest, TheFirstSampleOfAGroupLeadsAndTheOthersForkIt) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorders[3];
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (Recorder& recorder : recorders) {
    TokenRequest request = Request();
    request.group = 1;
    request.group_size = 3;
    streams.push_back(Start(request, &recorder));
  }
  const auto leader = rank.AwaitSubmit(1);
  EXPECT_EQ(leader.fork_sequence_id(), 0u);
  EXPECT_EQ(leader.followers(), 2u);
  for (size_t i = 2; i <= 3; ++i) {
    const auto follower = rank.AwaitSubmit(i);
    EXPECT_EQ(follower.fork_sequence_id(), leader.sequence_id());
    EXPECT_FALSE(follower.fork_at_current_token());
    EXPECT_EQ(follower.followers(), 0u);
  }
  // A leader that has lost its sequence opens another one, which nobody waits for.
  rank.SendFailed(leader.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const auto again = rank.AwaitSubmit(4);
  EXPECT_NE(again.sequence_id(), leader.sequence_id());
  EXPECT_EQ(again.fork_sequence_id(), 0u);
  EXPECT_EQ(again.followers(), 0u);
  // A follower whose attempt is lost forks the new one.
  rank.SendFailed(rank.AwaitSubmit(2).request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  EXPECT_EQ(rank.AwaitSubmit(5).fork_sequence_id(), again.sequence_id());
}

// The prompt goes on elsewhere, with what its cache rank has of it. The other sample had no sequence there yet.
TEST_F(SampleGroupTest, WhereTheRankOfAPromptIsLostTheOthersForkItWhereItGoesOn) {
  ScriptedRank first("inference-0");
  StartDispatcher({first.identity(), CacheRank("cache-0"), CacheRank("cache-1")});
  Recorder recorders[2];
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (Recorder& recorder : recorders) {
    TokenRequest request = Request();
    request.group = 1;
    request.group_size = 2;
    streams.push_back(Start(request, &recorder));
  }
  const uint64_t leader = first.AwaitSubmit(1).sequence_id();
  EXPECT_EQ(first.AwaitSubmit(2).fork_sequence_id(), leader);

  ScriptedRank second("inference-1");
  Join(second.identity());
  first.Kill();
  ScriptedRank::Submit of_other;
  for (size_t i = 1; i <= 2; ++i) {
    const ScriptedRank::Submit submit = second.AwaitSubmit(i);
    EXPECT_TRUE(submit.attach());
    if (submit.sequence_id() != leader) of_other = submit;
  }
  second.SendFailed(of_other.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit again = second.AwaitSubmit(3);
  EXPECT_FALSE(again.attach());
  EXPECT_EQ(again.fork_sequence_id(), leader);
  EXPECT_EQ(again.cache_ranks(0).rank(), of_other.cache_ranks(0).rank());
}

TEST_F(SampleGroupTest, AForkGoesToItsSourceOrIsOpenedWithItsTokens) {
  ScriptedRank a("inference-0");
  ScriptedRank b("inference-1");
  StartDispatcher({a.identity(), b.identity(), CacheRank("cache-0")});
  Recorder source, fork, lost;
  const auto source_stream = Start(Request(), &source);
  ASSERT_TRUE(source_stream->fork_source().has_value());
  const bool at_a = source_stream->fork_source()->inference.rank == "inference-0";
  ScriptedRank& near = at_a ? a : b;
  const auto submit = near.AwaitSubmit(1);
  EXPECT_EQ(source_stream->fork_source()->sequence_id, submit.sequence_id());
  TokenRequest request = Request();
  request.fork = TokenFork{.source = *source_stream->fork_source(), .token_ids = {7, 8}};
  const auto fork_stream = Start(request, &fork);
  const auto forked = near.AwaitSubmit(2);
  EXPECT_EQ(forked.fork_sequence_id(), submit.sequence_id());
  EXPECT_TRUE(forked.fork_at_current_token());
  EXPECT_EQ(forked.generated_token_ids_size(), 2);
  request.fork->source.inference.incarnation += 1;  // a rank that is not there any more
  const auto lost_stream = Start(request, &lost);
  const auto opened = (at_a ? b : a).AwaitSubmit(1);
  EXPECT_EQ(opened.fork_sequence_id(), 0u);
  EXPECT_EQ(opened.generated_token_ids_size(), 2);
}

}  // namespace
}  // namespace winnow::test
