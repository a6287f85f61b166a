#include "router/membership/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/membership/registry_fixture.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
      {"kv_shape.attention_softcap", [](v1::Fingerprint& f) { f.mutable_kv_shape()->set_attention_softcap(9); }, false},
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
