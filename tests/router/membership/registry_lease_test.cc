#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/membership/registry_fixture.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

TEST_F(RegistryTest, ARankLivesAsLongAsItsLease) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  Pass(milliseconds(1999));
  EXPECT_EQ(Names().size(), 1u);
  registry_.Heartbeat(1, Beat(Inference(), 5));
  EXPECT_EQ(registry_.Snapshot().ranks[0].load.running_sequences(), 5u);
  Pass(milliseconds(1999));
  EXPECT_EQ(Names().size(), 1u);
  Pass(milliseconds(101));
  EXPECT_TRUE(Names().empty());
  // It was only slow: it is told to register again, and may.
  EXPECT_TRUE(registry_.Heartbeat(1, Beat(Inference())).unknown());
  EXPECT_TRUE(registry_.Register(Inference()).ok());
  EXPECT_EQ(Names().size(), 1u);
}

// Whoever waits for a rank goes on waiting then.
TEST_F(RegistryTest, KnowsThatRanksWhichWereGivenUpLive) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  registry_.Heartbeat(1, Beat(Inference()));
  Pass(milliseconds(6200));
  EXPECT_FALSE(registry_.RanksAreLate()) << "they are silent";
  v1::RegisterRequest next = Inference();
  next.mutable_identity()->set_incarnation(next.identity().incarnation() + 1);
  registry_.Knocked(next.identity());
  registry_.Knocked(Inference("inference-1").identity());
  EXPECT_FALSE(registry_.RanksAreLate()) << "others are no sign of them";
  registry_.Knocked(Inference().identity());
  EXPECT_TRUE(registry_.RanksAreLate());
  Pass(milliseconds(30'000));
  EXPECT_FALSE(registry_.RanksAreLate());
  EXPECT_TRUE(registry_.Heartbeat(1, Beat(Cache())).unknown());
  EXPECT_TRUE(registry_.RanksAreLate());
  Pass(milliseconds(30'000));
  EXPECT_TRUE(registry_.Register(Inference()).ok());
  EXPECT_TRUE(registry_.RanksAreLate());
}

TEST_F(RegistryTest, ARankThatIsSeenToWorkNeedsNoHeartbeats) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  for (int i = 0; i < 5; ++i) {
    Pass(milliseconds(1500));
    registry_.Progressed(Inference().identity());
    registry_.Progressed(Inference("inference-1").identity());  // who is not there
  }
  EXPECT_THAT(Names(), testing::ElementsAre("inference-0"));
  Pass(milliseconds(2900));
  EXPECT_EQ(Names().size(), 1u) << "twice as long as between two signs of life";
  Pass(milliseconds(200));
  EXPECT_TRUE(Names().empty());
}

// The router is stopped again and again, for longer than a lease. No rank has failed.
TEST_F(RegistryTest, ALeaseRunsOnlyWhileTheRouterDoes) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  const uint64_t version = registry_.Snapshot().version;
  for (int i = 0; i < 12; ++i) {
    BeAway(milliseconds(2300));
    Pass(milliseconds(200));  // until the heartbeats in the sockets are read
    EXPECT_FALSE(registry_.Heartbeat(1, Beat(Inference())).unknown());
    EXPECT_FALSE(registry_.Heartbeat(2, Beat(Cache())).unknown());
    Pass(milliseconds(1000));
  }
  EXPECT_EQ(registry_.Snapshot().version, version);
  EXPECT_TRUE(departures_.empty());
}

TEST_F(RegistryTest, ARankThatIsSilentWheneverTheRouterRunsIsFoundAllTheSame) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  for (int i = 0; i < 2; ++i) {
    BeAway(milliseconds(2300));
    Pass(milliseconds(1200));
  }
  EXPECT_TRUE(Names().empty());
}

// Its lease is all but over when the router is stopped, and its heartbeat waits in a socket when it goes on.
TEST_F(RegistryTest, WhatWaitsInTheSocketsIsTakenBeforeAnybodyIsJudged) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  Pass(milliseconds(1950));
  BeAway(milliseconds(30000));
  registry_.ExpireLeases();
  EXPECT_FALSE(registry_.Heartbeat(1, Beat(Inference())).unknown());
  Pass(milliseconds(1900));
  EXPECT_EQ(Names().size(), 1u);
}

TEST_F(RegistryTest, AProcessThatComesBackAfterItsLeaseWasSlowAndGetsALongerOne) {
  for (const uint32_t lease_ms : {2000u, 4000u, 8000u, 16000u, 16000u}) {
    const auto response = registry_.Register(Inference());
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->lease_ms(), lease_ms);
    Pass(milliseconds(lease_ms - 1));
    EXPECT_EQ(Names().size(), 1u);
    Pass(milliseconds(101));
    EXPECT_TRUE(Names().empty());
  }
  // Another start of it may be faster.
  EXPECT_EQ(registry_.Register(Inference("inference-0", 2))->lease_ms(), 2000u);
}

// Silent for a lease, but where all have been late lately that is no death: it gets no work, and keeps its answers.
TEST_F(RegistryTest, ALateRankGetsNoWorkAndKeepsItsPlaceWhenItComesBack) {
  const auto takes_work = [&] { return registry_.Snapshot().ranks.back().takes_work(); };
  for (const char* rank : {"a", "b", "c"}) ASSERT_TRUE(registry_.Register(Inference(rank)).ok());
  for (int i = 0; i < 3; ++i) {
    Pass(milliseconds(1300));
    for (const char* rank : {"a", "b", "c"}) registry_.Heartbeat(1, Beat(Inference(rank)));
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(takes_work(), i < 2) << i;
    Pass(milliseconds(1100));
    for (const char* rank : {"a", "b"}) registry_.Heartbeat(1, Beat(Inference(rank)));
  }
  EXPECT_THAT(Names(), testing::ElementsAre("a", "b", "c"));
  EXPECT_FALSE(takes_work());
  EXPECT_FALSE(registry_.Heartbeat(3, Beat(Inference("c"))).unknown());
  EXPECT_TRUE(takes_work());
  EXPECT_TRUE(departures_.empty());
  // Which it does not keep for ever.
  for (int i = 0; i < 7; ++i) {
    Pass(milliseconds(1100));
    for (const char* rank : {"a", "b"}) registry_.Heartbeat(1, Beat(Inference(rank)));
  }
  EXPECT_THAT(Names(), testing::ElementsAre("a", "b"));
  EXPECT_EQ(registry_.DepartureOf(KeyOf(Inference("c").identity())), Departure::kExpired);
}

TEST_F(RegistryTest, NobodyIsGivenUpWhileNobodyCouldTakeItsAnswers) {
  for (const char* rank : {"a", "b"}) ASSERT_TRUE(registry_.Register(Inference(rank)).ok());
  Pass(milliseconds(9000));
  EXPECT_THAT(Names(), testing::ElementsAre("a", "b"));
  registry_.Heartbeat(1, Beat(Inference("b")));
  for (int i = 0; i < 2; ++i) {
    Pass(milliseconds(400));
    registry_.Heartbeat(1, Beat(Inference("b")));
  }
  EXPECT_THAT(Names(), testing::ElementsAre("b")) << "b can take them, and a has been silent far too long";
}

TEST_F(RegistryTest, ARankIsWaitedForAsLongAsGoingOnElsewhereTakes) {
  for (const char* rank : {"a", "b"}) ASSERT_TRUE(registry_.Register(Inference(rank)).ok());
  registry_.NoteMove(milliseconds(5000), /*recompute=*/false);
  const auto pass_without_a = [&](int half_seconds) {
    for (int i = 0; i < half_seconds; ++i) {
      Pass(milliseconds(500));
      registry_.Heartbeat(1, Beat(Inference("b")));
    }
  };
  pass_without_a(9);
  EXPECT_EQ(Names().size(), 2u);
  pass_without_a(2);
  EXPECT_THAT(Names(), testing::ElementsAre("b"));
}

// Packets pass from the rank to the router, and not back: nobody is to wait for it for ever.
TEST_F(RegistryTest, ARankThatTriesToRegisterInVainIsLateForAMinuteOnly) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  Pass(milliseconds(2200));
  for (int i = 0; i < 58; ++i) {
    registry_.Knocked(Inference().identity());
    EXPECT_TRUE(registry_.RanksAreLate());
    Pass(milliseconds(1000));
  }
  for (int i = 0; i < 40; ++i) {
    registry_.Knocked(Inference().identity());
    Pass(milliseconds(1000));
  }
  EXPECT_FALSE(registry_.RanksAreLate());
}

TEST_F(RegistryTest, InferenceRanksAreToldWhichCacheRanksHaveBeenSilentForALease) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  ASSERT_TRUE(registry_.Register(Cache("cache-0", 7)).ok());
  ASSERT_TRUE(registry_.Register(Cache("cache-1")).ok());
  const auto expired = [&](const v1::RegisterRequest& told) {
    std::vector<std::pair<std::string, uint64_t>> ranks;
    const v1::HeartbeatResponse answer = registry_.Heartbeat(1, Beat(told));
    for (const v1::Identity& rank : answer.expired_cache_ranks()) {
      ranks.emplace_back(rank.rank(), rank.incarnation());
    }
    return ranks;
  };
  const std::vector<std::pair<std::string, uint64_t>> none, first{{"cache-0", 7}};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(expired(Inference()), none);
    registry_.Heartbeat(2, Beat(Cache("cache-1")));
    Pass(milliseconds(600));
  }
  EXPECT_EQ(expired(Inference()), first);
  EXPECT_EQ(expired(Inference()), first) << "with every answer";
  EXPECT_EQ(expired(Cache("cache-1")), none) << "who waits for no cache rank";
  ASSERT_TRUE(registry_.Register(Cache("cache-0", 7)).ok());
  EXPECT_EQ(expired(Inference()), none) << "it is back";
}

}  // namespace
}  // namespace winnow
