#include "router/membership/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace winnow {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RegistryTest : public ::testing::Test {
 protected:
  static v1::RegisterRequest Inference(const std::string& rank = "inference-0", uint64_t incarnation = 1) {
    v1::RegisterRequest request;
    v1::Identity* identity = request.mutable_identity();
    identity->set_cluster("c");
    identity->set_role(v1::ROLE_INFERENCE_RANK);
    identity->set_rank(rank);
    identity->set_incarnation(incarnation);
    identity->set_address("127.0.0.1:1000");
    v1::Fingerprint* f = request.mutable_fingerprint();
    f->set_model_digest("m");
    f->set_tokenizer_digest("t");
    f->mutable_kv_shape()->set_num_layers(8);
    f->mutable_kv_shape()->set_kv_dtype(v1::KV_DTYPE_BF16);
    f->mutable_kv_shape()->add_rope_inv_freq(1.0f);
    f->mutable_kv_shape()->add_rope_inv_freq(0.5f);
    f->set_block_tokens(32);
    f->set_row_layout(1);
    f->set_selector_version(1);
    f->set_wire_version(1);
    f->set_numerics("cpu-avx2");
    request.mutable_limits()->set_max_context_tokens(4096);
    request.mutable_limits()->set_vocab_size(512);
    request.mutable_limits()->set_max_budget_tokens(2048);
    return request;
  }
  static v1::RegisterRequest Cache(const std::string& rank = "cache-0", uint64_t incarnation = 1) {
    v1::RegisterRequest request = Inference(rank, incarnation);
    request.mutable_identity()->set_role(v1::ROLE_CACHE_RANK);
    request.clear_limits();
    request.mutable_fingerprint()->clear_model_digest();
    request.mutable_fingerprint()->clear_tokenizer_digest();
    request.mutable_fingerprint()->clear_kv_shape();
    request.mutable_fingerprint()->clear_numerics();
    return request;
  }
  static v1::HeartbeatRequest Beat(const v1::RegisterRequest& of, uint32_t running = 0, bool draining = false) {
    v1::HeartbeatRequest beat;
    *beat.mutable_identity() = of.identity();
    beat.mutable_load()->set_running_sequences(running);
    beat.mutable_load()->set_draining(draining);
    return beat;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const RankRecord& record : registry_.Snapshot().ranks) names.push_back(record.identity.rank());
    return names;
  }

  // Time in which the router runs and checks leases as it should.
  void Pass(milliseconds time) {
    for (; time > milliseconds(100); time -= milliseconds(100)) {
      now_ += milliseconds(100);
      registry_.ExpireLeases();
    }
    now_ += time;
    registry_.ExpireLeases();
  }
  // Time in which the router is stopped, or gets no CPU.
  void BeAway(milliseconds time) { now_ += time; }

  std::chrono::steady_clock::time_point now_{};
  std::vector<std::pair<std::string, Departure>> departures_;
  Registry registry_{
      {.cluster = "c",
       .on_departure = [this](const v1::Identity& rank, Departure why) { departures_.emplace_back(rank.rank(), why); }},
      [this] { return now_; }};
};

TEST_F(RegistryTest, ARegisteredRankIsInTheTable) {
  const auto response = registry_.Register(Inference());
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->lease_ms(), 2000u);
  EXPECT_EQ(response->heartbeat_ms(), 500u);
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  const MembershipSnapshot snapshot = registry_.Snapshot();
  ASSERT_EQ(snapshot.ranks.size(), 2u);
  EXPECT_GT(snapshot.version, response->membership_version());
  EXPECT_NE(snapshot.Find(v1::ROLE_CACHE_RANK, {"cache-0", 1}), nullptr);
  EXPECT_EQ(snapshot.Find(v1::ROLE_CACHE_RANK, {"cache-0", 2}), nullptr);
  EXPECT_EQ(snapshot.Find(v1::ROLE_INFERENCE_RANK, {"cache-0", 1}), nullptr);
}

TEST_F(RegistryTest, EachFieldOfTheFingerprintIsCompared) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  struct Case {
    std::string field;
    std::function<void(v1::Fingerprint&)> change;
    bool cache_rank_too;
  };
  const std::vector<Case> cases = {
      {"model_digest", [](v1::Fingerprint& f) { f.set_model_digest("x"); }, false},
      {"tokenizer_digest", [](v1::Fingerprint& f) { f.set_tokenizer_digest("x"); }, false},
      {"kv_shape.num_layers", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_num_layers(9); }, false},
      {"kv_shape.num_query_heads", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_num_query_heads(9); }, false},
      {"kv_shape.num_kv_heads", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_num_kv_heads(9); }, false},
      {"kv_shape.head_dim", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_head_dim(9); }, false},
      {"kv_shape.kv_dtype", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_kv_dtype(v1::KV_DTYPE_F32); }, false},
      {"kv_shape.rope_inv_freq[1]", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_rope_inv_freq(1, 9); }, false},
      {"kv_shape.rope_inv_freq.size", [](v1::Fingerprint& f) { f.mutable_kv_shape()->add_rope_inv_freq(9); }, false},
      {"kv_shape.rope_attention_factor", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_rope_attention_factor(9); },
       false},
      {"kv_shape.attention_scale", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_attention_scale(9); }, false},
      {"block_tokens", [](v1::Fingerprint& f) { f.set_block_tokens(64); }, true},
      {"row_layout", [](v1::Fingerprint& f) { f.set_row_layout(9); }, true},
      {"selector_version", [](v1::Fingerprint& f) { f.set_selector_version(9); }, true},
      {"wire_version", [](v1::Fingerprint& f) { f.set_wire_version(9); }, true},
  };
  for (const Case& c : cases) {
    v1::RegisterRequest inference = Inference("inference-1");
    c.change(*inference.mutable_fingerprint());
    const absl::Status status = registry_.Register(inference).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr("fingerprint." + c.field + " is")) << c.field;
    v1::RegisterRequest cache = Cache("cache-" + c.field);
    *cache.mutable_fingerprint() = Inference().fingerprint();
    c.change(*cache.mutable_fingerprint());
    EXPECT_EQ(registry_.Register(cache).ok(), !c.cache_rank_too) << c.field;
  }
  v1::RegisterRequest other_numerics = Inference("inference-1");
  other_numerics.mutable_fingerprint()->set_numerics("cpu-avx512");
  EXPECT_TRUE(registry_.Register(other_numerics).ok());
}

TEST_F(RegistryTest, AMismatchNamesBothValues) {
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  v1::RegisterRequest inference = Inference();
  inference.mutable_fingerprint()->set_block_tokens(64);
  EXPECT_THAT(std::string(registry_.Register(inference).status().message()),
              AllOf(HasSubstr("block_tokens"), HasSubstr("\"64\""), HasSubstr("\"32\"")));
  // What was refused has fixed nothing.
  EXPECT_TRUE(registry_.Register(Inference()).ok());
}

TEST_F(RegistryTest, TheFingerprintStaysWhenAllRanksAreGone) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  registry_.Leave(Inference().identity());
  EXPECT_TRUE(Names().empty());
  v1::RegisterRequest other = Inference("inference-0", 2);
  other.mutable_fingerprint()->set_model_digest("x");
  EXPECT_EQ(registry_.Register(other).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RegistryTest, MalformedRegistrationsAreRefused) {
  auto with = [](auto change) {
    v1::RegisterRequest request = Inference();
    change(request);
    return request;
  };
  using R = v1::RegisterRequest;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(registry_.Register(with([](R& r) { r.mutable_identity()->set_role(v1::ROLE_ROUTER); })).status().code(),
            invalid);
  EXPECT_EQ(registry_.Register(with([](R& r) { r.mutable_identity()->clear_rank(); })).status().code(), invalid);
  EXPECT_EQ(registry_.Register(with([](R& r) { r.mutable_identity()->clear_address(); })).status().code(), invalid);
  EXPECT_EQ(registry_.Register(with([](R& r) { r.mutable_identity()->clear_incarnation(); })).status().code(), invalid);
  EXPECT_EQ(registry_.Register(with([](R& r) { r.clear_limits(); })).status().code(), invalid);
  EXPECT_EQ(registry_.Register(with([](R& r) { r.mutable_identity()->set_cluster("other"); })).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Names().empty());
}

TEST_F(RegistryTest, ANewIncarnationReplacesAndFencesTheOldOne) {
  ASSERT_TRUE(registry_.Register(Inference("inference-0", 1)).ok());
  ASSERT_TRUE(registry_.Register(Inference("inference-0", 2)).ok());
  EXPECT_EQ(registry_.Snapshot().ranks.size(), 1u);
  EXPECT_EQ(registry_.Snapshot().ranks[0].identity.incarnation(), 2u);
  EXPECT_TRUE(registry_.Heartbeat(1, Beat(Inference("inference-0", 1))).unknown());
  EXPECT_FALSE(registry_.Heartbeat(2, Beat(Inference("inference-0", 2))).unknown());
  EXPECT_EQ(registry_.Register(Inference("inference-0", 1)).status().code(), absl::StatusCode::kAborted);
  registry_.Leave(Inference("inference-0", 1).identity());
  EXPECT_EQ(Names().size(), 1u);
}

TEST_F(RegistryTest, SaysWhyARankIsGone) {
  for (const char* rank : {"a", "b", "c", "d"}) ASSERT_TRUE(registry_.Register(Inference(rank)).ok());
  registry_.Leave(Inference("a").identity());
  registry_.Leave(Inference("a").identity());  // already gone
  registry_.Heartbeat(7, Beat(Inference("b")));
  registry_.StreamEnded(7);
  for (int i = 0; i < 4; ++i) {
    Pass(milliseconds(700));
    registry_.Heartbeat(8, Beat(Inference("c")));
  }
  EXPECT_THAT(departures_,
              testing::ElementsAre(testing::Pair("a", Departure::kLeft), testing::Pair("b", Departure::kLost),
                                   testing::Pair("d", Departure::kExpired)));
}

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

TEST_F(RegistryTest, TheEndOfTheNewestHeartbeatStreamIsDeathAtOnce) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  const auto first = registry_.NewStream();
  const auto second = registry_.NewStream();
  registry_.Heartbeat(first, Beat(Inference()));
  registry_.Heartbeat(second, Beat(Inference()));
  registry_.StreamEnded(first);  // it has moved on from there
  EXPECT_EQ(Names().size(), 1u);
  EXPECT_EQ(registry_.DepartureOf(KeyOf(Inference().identity())), std::nullopt);
  registry_.StreamEnded(second);
  EXPECT_TRUE(Names().empty());
  EXPECT_EQ(registry_.DepartureOf(KeyOf(Inference().identity())), Departure::kLost);
}

TEST_F(RegistryTest, TheEndOfAStreamFromBeforeARegistrationSaysNothing) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  const auto stream = registry_.NewStream();
  registry_.Heartbeat(stream, Beat(Inference()));
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  registry_.StreamEnded(stream);
  EXPECT_EQ(Names().size(), 1u);
}

// A rank closes a connection that has been silent for long. Its process need not be dead.
TEST_F(RegistryTest, AStreamThatEndedWhileTheRouterWasAwayMakesItsRankSuspect) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  const auto stream = registry_.NewStream();
  registry_.Heartbeat(stream, Beat(Inference()));
  BeAway(milliseconds(30000));
  registry_.StreamEnded(stream);
  ASSERT_EQ(Names().size(), 1u);
  EXPECT_FALSE(registry_.Snapshot().ranks[0].takes_work());
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  EXPECT_TRUE(registry_.Snapshot().ranks[0].takes_work());
  // One that does not come back is dead.
  registry_.Heartbeat(registry_.NewStream(), Beat(Inference()));
  BeAway(milliseconds(30000));
  registry_.StreamEnded(stream + 1);
  Pass(milliseconds(2100));
  EXPECT_TRUE(Names().empty());
}

TEST_F(RegistryTest, AnUnreachableRankIsSuspectUntilItsNextHeartbeat) {
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  registry_.ReportUnreachable(Inference().identity());
  EXPECT_TRUE(registry_.Snapshot().ranks[0].suspect);
  registry_.Heartbeat(1, Beat(Inference()));
  EXPECT_FALSE(registry_.Snapshot().ranks[0].suspect);
  registry_.ReportUnreachable(Inference("inference-0", 9).identity());  // somebody else
  EXPECT_FALSE(registry_.Snapshot().ranks[0].suspect);
}

TEST_F(RegistryTest, LimitsAreTheSmallestOfAllInferenceRanks) {
  EXPECT_FALSE(registry_.Limits().has_value());
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  v1::RegisterRequest small = Inference("inference-1");
  small.mutable_limits()->set_max_context_tokens(100);
  ASSERT_TRUE(registry_.Register(small).ok());
  EXPECT_EQ(registry_.Limits()->max_context_tokens(), 100u);
  registry_.Leave(small.identity());
  EXPECT_EQ(registry_.Limits()->max_context_tokens(), 4096u);
  registry_.Leave(Inference().identity());
  EXPECT_EQ(registry_.Limits()->max_context_tokens(), 4096u);
  v1::RegisterRequest other = Inference("inference-2");
  other.mutable_limits()->set_vocab_size(513);
  EXPECT_THAT(std::string(registry_.Register(other).status().message()), HasSubstr("vocab_size"));
}

TEST_F(RegistryTest, SubscribersAreToldOfChangesAndOnlyOfChanges) {
  std::vector<size_t> sizes;
  auto subscription = registry_.Subscribe([&](const MembershipSnapshot& s) { sizes.push_back(s.ranks.size()); });
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  registry_.Heartbeat(1, Beat(Inference(), 3));        // load only
  registry_.Heartbeat(1, Beat(Inference(), 3, true));  // draining
  registry_.Heartbeat(1, Beat(Inference(), 3, true));
  v1::HeartbeatRequest failing = Beat(Inference(), 3, true);
  failing.mutable_load()->set_failing("nothing comes to anything");
  registry_.Heartbeat(1, failing);
  failing.mutable_load()->set_failing("nor does it now");
  registry_.Heartbeat(1, failing);
  registry_.StreamEnded(1);
  registry_.StreamEnded(1);
  registry_.ExpireLeases();
  EXPECT_EQ(sizes, (std::vector<size_t>{1, 2, 2, 2, 1}));
  subscription.reset();
  registry_.Leave(Cache().identity());
  EXPECT_EQ(sizes.size(), 5u);
}

TEST_F(RegistryTest, OrdersHoldForEveryStartOfARank) {
  int changes = 0;
  auto subscription = registry_.Subscribe([&](const MembershipSnapshot&) { ++changes; });
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  const std::string name = Inference().identity().rank();
  const auto record = [&] { return registry_.Snapshot().ranks.at(0); };
  ASSERT_TRUE(registry_.SetDuty(name, RankDuty::kCordoned).ok());
  EXPECT_EQ(changes, 2);
  EXPECT_FALSE(record().takes_work());
  EXPECT_FALSE(record().drains());
  EXPECT_FALSE(registry_.IsToDrain(KeyOf(record().identity)));
  ASSERT_TRUE(registry_.SetDuty(name, RankDuty::kDrain).ok());
  ASSERT_TRUE(registry_.SetWeight(name, 2).ok());
  EXPECT_TRUE(registry_.IsToDrain(KeyOf(record().identity)));

  registry_.Leave(Inference().identity());
  EXPECT_EQ(registry_.Orders().at(name), (RankOrders{.duty = RankDuty::kDrain, .weight = 2}));
  ASSERT_TRUE(registry_.Register(Inference(name, 2)).ok());
  EXPECT_TRUE(record().drains());
  EXPECT_EQ(record().orders.weight, 2);
  EXPECT_FALSE(registry_.IsToDrain(KeyOf(Inference().identity()))) << "that start of it is gone";

  ASSERT_TRUE(registry_.SetDuty(name, RankDuty::kServe).ok());
  ASSERT_TRUE(registry_.SetWeight(name, 1).ok());
  EXPECT_TRUE(record().takes_work());
  EXPECT_TRUE(registry_.Orders().empty());
}

TEST_F(RegistryTest, OrdersFromElsewhereReplaceAllOthers) {
  ASSERT_TRUE(registry_.Register(Inference("inference-0")).ok());
  ASSERT_TRUE(registry_.SetDuty("inference-0", RankDuty::kDrain).ok());
  const std::map<std::string, RankOrders> orders = {{"inference-1", {.duty = RankDuty::kCordoned, .weight = 3}}};
  registry_.SetOrders(orders);
  EXPECT_EQ(registry_.Orders(), orders);
  EXPECT_TRUE(registry_.Snapshot().ranks.at(0).takes_work());
  ASSERT_TRUE(registry_.Register(Inference("inference-1")).ok());
  EXPECT_FALSE(registry_.Snapshot().ranks.at(1).takes_work()) << "they hold for ranks to come";
  registry_.SetOrders({});
  EXPECT_TRUE(registry_.Snapshot().ranks.at(1).takes_work());
  EXPECT_TRUE(registry_.Orders().empty());
}

TEST_F(RegistryTest, OrdersThatCannotBeAreRefused) {
  EXPECT_THAT(std::string(registry_.SetDuty("inference-7", RankDuty::kDrain).message()), HasSubstr("none has joined"));
  ASSERT_TRUE(registry_.Register(Inference("inference-0")).ok());
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  const absl::Status unknown = registry_.SetDuty("inference-7", RankDuty::kDrain);
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("there are cache-0, inference-0"));
  for (const double weight : {0.0, -1.0, 101.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(registry_.SetWeight("inference-0", weight))) << weight;
  }
}

TEST_F(RegistryTest, ASubscriberMayUnsubscribeInItsCallback) {
  int calls = 0;
  std::unique_ptr<Registry::Subscription> subscription;
  subscription = registry_.Subscribe([&](const MembershipSnapshot&) {
    ++calls;
    subscription.reset();
  });
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  EXPECT_EQ(calls, 1);
}

// Where somebody checks who reaches whom.
class CheckedRegistryTest : public RegistryTest {
 protected:
  CheckedRegistryTest() { EXPECT_TRUE(checked_.Register(Inference()).ok() && checked_.Register(Cache()).ok()); }
  std::vector<RankKey> Unreached() const {
    return checked_.Snapshot().Find(v1::ROLE_INFERENCE_RANK, {"inference-0", 1})->unreached;
  }

  Registry checked_{{.cluster = "c", .reachability_is_checked = true}, [this] { return now_; }};
};

TEST_F(CheckedRegistryTest, InferenceRanksReachACacheRankOnceItIsSaid) {
  const RankKey inference{"inference-0", 1}, cache{"cache-0", 1};
  EXPECT_THAT(Unreached(), ::testing::ElementsAre(cache));
  checked_.SetLink(inference, cache, true);
  EXPECT_THAT(Unreached(), ::testing::IsEmpty());
  checked_.SetLink(inference, cache, false);
  EXPECT_THAT(Unreached(), ::testing::ElementsAre(cache));
  checked_.SetLink({"inference-0", 7}, cache, true);
  checked_.SetLink(inference, {"cache-0", 7}, true);
  EXPECT_THAT(Unreached(), ::testing::ElementsAre(cache)) << "other starts of them have said nothing";
}

TEST_F(CheckedRegistryTest, AnotherStartOfACacheRankIsReachedAnew) {
  checked_.SetLink({"inference-0", 1}, {"cache-0", 1}, true);
  ASSERT_TRUE(checked_.Register(Cache("cache-0", 2)).ok());
  EXPECT_THAT(Unreached(), ::testing::ElementsAre(RankKey{"cache-0", 2}));
}

TEST_F(CheckedRegistryTest, SuspicionEndsWhenTheRankHasBeenReachedNotByItsHeartbeat) {
  checked_.ReportUnreachable(Cache().identity());
  checked_.Heartbeat(checked_.NewStream(), Beat(Cache()));
  const auto is_suspect = [this] { return checked_.Snapshot().Find(v1::ROLE_CACHE_RANK, {"cache-0", 1})->suspect; };
  EXPECT_TRUE(is_suspect());
  checked_.Reached(Cache().identity());
  EXPECT_FALSE(is_suspect());
}

}  // namespace
}  // namespace winnow
