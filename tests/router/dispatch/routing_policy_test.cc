#include "router/dispatch/routing_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using ::testing::HasSubstr;

RankRecord Rank(v1::Role role, const std::string& name, uint32_t running = 0, uint32_t waiting = 0,
                uint64_t free_bytes = 100) {
  RankRecord record;
  record.identity.set_role(role);
  record.identity.set_rank(name);
  record.identity.set_incarnation(1);
  record.load.set_running_sequences(running);
  record.load.set_waiting_sequences(waiting);
  record.load.set_free_bytes(free_bytes);
  return record;
}
template <typename... Args>
RankRecord Inference(Args... args) {
  return Rank(v1::ROLE_INFERENCE_RANK, args...);
}
template <typename... Args>
RankRecord Cache(Args... args) {
  return Rank(v1::ROLE_CACHE_RANK, args...);
}
RankRecord OfSize(uint64_t total_bytes, RankRecord record) {
  record.load.set_total_bytes(total_bytes);
  return record;
}
RankRecord Suspect(RankRecord record) {
  record.suspect = true;
  return record;
}
RankRecord Draining(RankRecord record) {
  record.load.set_draining(true);
  return record;
}
RankRecord Failing(RankRecord record) {
  record.load.set_failing("no link opens");
  return record;
}
RankRecord Cordoned(RankRecord record) {
  record.orders.duty = RankDuty::kCordoned;
  return record;
}
RankRecord OfWeight(double weight, RankRecord record) {
  record.orders.weight = weight;
  return record;
}
RankRecord WithRows(uint32_t batch_rows, RankRecord record) {
  record.limits.set_max_running(batch_rows);
  return record;
}
RankRecord HostedBy(const std::string& host, RankRecord record) {
  record.hosted_by_rank = host;
  return record;
}
RankRecord NotReaching(std::vector<RankKey> caches, RankRecord record) {
  record.unreached = std::move(caches);
  return record;
}
RankRecord Prefill(const std::string& name, uint64_t queued_prompt_tokens = 0, uint32_t running = 0) {
  RankRecord record = Inference(name, running);
  record.phases = v1::PHASES_PREFILL;
  record.load.set_queued_prompt_tokens(queued_prompt_tokens);
  return record;
}
RankRecord Decode(const std::string& name, uint32_t running = 0, uint64_t free_bytes = 100) {
  RankRecord record = Inference(name, running, 0u, free_bytes);
  record.phases = v1::PHASES_DECODE;
  record.decode_prefill_tokens = 256;
  return record;
}
RankKey Key(const std::string& name) {
  return {name, 1};
}

struct Case {
  std::string name;
  std::vector<RankRecord> ranks;
  AssignedCounts assigned;
  RouteNeed need;
  std::string route;  // "inference cache...", with "hand-over" where one follows, or a part of the error
};

class RoutingPolicyTest : public ::testing::TestWithParam<Case> {};

TEST_P(RoutingPolicyTest, Chooses) {
  const auto route = ChooseRoute({.version = 1, .ranks = GetParam().ranks}, GetParam().assigned, GetParam().need);
  if (route.ok()) {
    std::string text = route->inference.rank();
    for (const v1::Identity& cache : route->caches) text += " " + cache.rank();
    EXPECT_EQ(text + (route->hand_over ? " hand-over" : ""), GetParam().route);
  } else {
    EXPECT_EQ(route.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(route.status().message()), HasSubstr(GetParam().route));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, RoutingPolicyTest,
    ::testing::Values(
        Case{"CordonedRanksGetNothingNew",
             {Cordoned(Inference("i0")), Inference("i1", 5), Cordoned(Cache("c0")), Cache("c1", 5)},
             {},
             {},
             "i1 c1"},
        Case{"ACordonedCacheRankKeepsWhatItHas",
             {Inference("i0"), Cordoned(Cache("c0")), Cache("c1")},
             {},
             {.caches = {Key("c0")}},
             "i0 c0"},
        Case{"OfWeightTwoTwiceAsMany",
             {Inference("i0", 3), OfWeight(2, Inference("i1", 6)), Cache("c0")},
             {},
             {},
             "i1 c0"},
        Case{"OfWeightTwoNoMoreThanThat",
             {Inference("i0", 3), OfWeight(2, Inference("i1", 7)), Cache("c0")},
             {},
             {},
             "i0 c0"},
        Case{"CacheRanksByWeight", {Inference("i0"), Cache("c0", 1), OfWeight(0.25, Cache("c1"))}, {}, {}, "i0 c0"},
        Case{"AFreeRow",
             {WithRows(2, Inference("i0", 2)), WithRows(8, Inference("i1", 5)), Cache("c0")},
             {},
             {.needs_free_row = true},
             "i1 c0"},
        Case{"NoFreeRow",
             {WithRows(2, Inference("i0", 2)), WithRows(8, Inference("i1", 1, 1)), Cache("c0")},
             {},
             {.needs_free_row = true},
             "reaches a cache rank"},
        Case{"Empty", {}, {}, {}, "no inference rank"}, Case{"NoCache", {Inference("i0")}, {}, {}, "no cache rank"},
        Case{"NoInference", {Cache("c0")}, {}, {}, "no inference rank"},
        Case{"OnlyRanksThatReachEachOther",
             {NotReaching({{"c0", 1}}, Inference("i0")), Inference("i1", 5u), Cache("c0"), Cache("c1", 5u)},
             {},
             {},
             "i0 c1"},
        Case{"NobodyReachesTheCacheRank",
             {NotReaching({{"c0", 1}}, Inference("i0")), Cache("c0")},
             {},
             {},
             "reaches a cache rank"},
        Case{"PinnedCachesGoWithThoseThatReachThem",
             {NotReaching({{"c0", 1}}, Inference("i0")), Inference("i1", 5u), Cache("c0"), Cache("c1")},
             {},
             {.caches = {{"c0", 1}}},
             "i1 c0"},
        Case{"FewestSequences",
             {Inference("i0", 3u), Inference("i1", 1u, 1u), Cache("c0", 2u), Cache("c1", 1u)},
             {},
             {},
             "i1 c1"},
        Case{"MostFreeBytesBreaksTies",
             {Inference("i0", 1u, 1u, 10u), Inference("i1", 2u, 0u, 20u), Cache("c0", 0u, 0u, 30u),
              Cache("c1", 0u, 0u, 20u)},
             {},
             {},
             "i1 c0"},
        Case{"NameBreaksTheRest", {Inference("i0"), Inference("i1"), Cache("c0"), Cache("c1")}, {}, {}, "i0 c0"},
        Case{"OwnCountIsNewerThanAHeartbeat",
             {Inference("i0"), Inference("i1", 1u), Cache("c0"), Cache("c1", 1u)},
             {{Key("i0"), {.requests = 2}}, {Key("c0"), {.requests = 3}}},
             {},
             "i1 c1"},
        Case{"HeartbeatCountsWhatOthersSent",
             {Inference("i0", 5u), Inference("i1", 1u), Cache("c0")},
             {{Key("i0"), {.requests = 1}}, {Key("i1"), {.requests = 1}}},
             {},
             "i1 c0"},
        Case{"SuspectAndDrainingGetNothing",
             {Suspect(Inference("i0")), Draining(Inference("i1")), Inference("i2", 9u), Suspect(Cache("c0")),
              Draining(Cache("c1")), Cache("c2", 9u)},
             {},
             {},
             "i2 c2"},
        Case{"AllDraining", {Draining(Inference("i0")), Cache("c0")}, {}, {}, "no inference rank"},
        Case{"PinnedCacheRank", {Inference("i0"), Cache("c0"), Cache("c1", 9u)}, {}, {.caches = {Key("c1")}}, "i0 c1"},
        Case{"PinnedCacheRankMayDrain",
             {Inference("i0"), Cache("c0"), Draining(Cache("c1"))},
             {},
             {.caches = {Key("c1")}},
             "i0 c1"},
        Case{"PinnedCacheRankIsGone", {Inference("i0"), Cache("c0")}, {}, {.caches = {Key("c1")}}, "c1 is gone"},
        Case{"ShardsAreOnTheLeastLoadedByName",
             {Inference("i0"), Cache("c0", 2u), Cache("c1", 5u), Cache("c2", 1u)},
             {},
             {.shards = {2, 2}},
             "i0 c0 c2"},
        Case{"FewerCacheRanksThanShards",
             {Inference("i0"), Cache("c0"), Suspect(Cache("c1")), Cache("c2")},
             {},
             {.shards = {3, 3}},
             "sequences are spread over 3 cache ranks, and 2 can take work"},
        Case{"FewerCacheRanksInReach",
             {Inference("i0"), Cache("c0"), HostedBy("i1", Cache("c1"))},
             {},
             {.shards = {2, 2}},
             "reaches 2 cache ranks"},
        Case{"PinnedShardsKeepTheirOrder",
             {Inference("i0"), Cache("c0"), Cache("c1"), Draining(Cache("c2"))},
             {},
             {.shards = {2, 2}, .caches = {Key("c2"), Key("c0")}},
             "i0 c2 c0"},
        Case{"OneOfThePinnedShardsIsGone",
             {Inference("i0"), Cache("c0"), Cache("c2")},
             {},
             {.shards = {2, 2}, .caches = {Key("c0"), Key("c1")}},
             "cache rank c1 is gone"},
        Case{"AsFewAsHoldTheSequence",
             {Inference("i0"), Cache("c0", 0u, 0u, 60u), Cache("c1", 0u, 0u, 50u), Cache("c2", 0u, 0u, 40u)},
             {},
             {.kv_bytes = 90, .shards = {1, 4}},
             "i0 c0 c1"},
        Case{"AllOfThemWhereNoneDo",
             {Inference("i0"), Cache("c0", 0u, 0u, 20u), Cache("c1", 0u, 0u, 20u)},
             {},
             {.kv_bytes = 90, .shards = {1, 4}},
             "i0 c0 c1"},
        Case{"RoomBeforeLoad",
             {Inference("i0"), Cache("c0", 0u, 0u, 20u), Cache("c1", 9u, 0u, 90u)},
             {},
             {.kv_bytes = 50},
             "i0 c1"},
        Case{"LargeEnoughBeforeRoom",
             {Inference("i0"), OfSize(40, Cache("c0", 0u, 0u, 40u)), OfSize(90, Cache("c1", 9u, 0u, 0u))},
             {},
             {.kv_bytes = 50},
             "i0 c1"},
        Case{"LargeEnoughInShards",
             {Inference("i0"), OfSize(40, Cache("c0")), OfSize(30, Cache("c1")), OfSize(90, Cache("c2", 9u))},
             {},
             {.kv_bytes = 80, .shards = {2, 2}},
             "i0 c0 c2"},
        Case{"NotToAPrefixThatIsOnATooSmallOne",
             {Inference("i0"), OfSize(40, Cache("c0")), OfSize(90, Cache("c1", 3u))},
             {},
             {.kv_bytes = 50, .prefix_caches = {Key("c0")}},
             "i0 c1"},
        Case{"NotToATooSmallHost",
             {Inference("i0"), Inference("i1", 9u), HostedBy("i0", OfSize(40, Cache("c0"))),
              HostedBy("i1", OfSize(90, Cache("c1")))},
             {},
             {.kv_bytes = 50},
             "i1 c1"},
        Case{"ATooSmallOneIsBetterThanNone", {Inference("i0"), OfSize(40, Cache("c0"))}, {}, {.kv_bytes = 50}, "i0 c0"},
        Case{"NotToOneThatHasSaidItIsTooSmall",
             {Inference("i0"), Cache("c0"), Cache("c1", 9u)},
             {},
             {.kv_bytes = 50, .prefer_caches = {Key("c0")}, .too_small = {Key("c0")}},
             "i0 c1"},
        Case{"AsManyShardsAsTheSiblings",
             {Inference("i0"), Cache("c0"), Cache("c1"), Cache("c2")},
             {},
             {.kv_bytes = 10, .shards = {1, 4}, .prefer_caches = {Key("c1"), Key("c2")}},
             "i0 c1 c2"},
        Case{"FollowsAPrefixInShards",
             {Inference("i0"), Cache("c0"), Cache("c1", 1u), Cache("c2", 1u)},
             {},
             {.shards = {2, 2}, .prefix_caches = {Key("c1"), Key("c2")}},
             "i0 c1 c2"},
        Case{"UnlessOneOfTheShardsIsBusy",
             {Inference("i0"), Cache("c0"), Cache("c1", 1u), Cache("c2", 9u)},
             {},
             {.shards = {2, 2}, .prefix_caches = {Key("c1"), Key("c2")}},
             "i0 c0 c1"},
        Case{"NotToAPrefixThatLeavesNoRoom",
             {Inference("i0"), Cache("c0", 0u, 0u, 60u), Cache("c1", 0u, 0u, 50u)},
             {},
             {.kv_bytes = 80, .shards = {1, 4}, .prefix_caches = {Key("c1")}},
             "i0 c0 c1"},
        Case{"PreferredUnlessItCannot",
             {Inference("i0"), Inference("i1", 9u), Cache("c0"), Cache("c1", 9u)},
             {},
             {.prefer_inference = Key("i1"), .prefer_caches = {Key("c1")}},
             "i1 c1"},
        Case{"PreferredIsSuspect",
             {Inference("i0", 9u), Suspect(Inference("i1")), Cache("c0")},
             {},
             {.prefer_inference = Key("i1")},
             "i0 c0"},
        Case{"FollowsAPrefix",
             {Inference("i0"), Cache("c0"), Cache("c1", 2u)},
             {},
             {.prefix_caches = {Key("c1")}},
             "i0 c1"},
        Case{"NotToARankThatIsFarBusier",
             {Inference("i0"), Cache("c0"), Cache("c1", 3u)},
             {},
             {.prefix_caches = {Key("c1")}},
             "i0 c0"},
        Case{"BusierIsRelative",
             {Inference("i0"), Cache("c0", 10u), Cache("c1", 22u)},
             {},
             {.prefix_caches = {Key("c1")}},
             "i0 c1"},
        Case{"SiblingsBeforeAPrefix",
             {Inference("i0"), Cache("c0"), Cache("c1")},
             {},
             {.prefer_caches = {Key("c0")}, .prefix_caches = {Key("c1")}},
             "i0 c0"},
        Case{"NotBackToTheRankThatFailed",
             {Inference("i0"), Cache("c0"), Cache("c1")},
             {},
             {.prefix_caches = {Key("c1")}, .avoid_caches = {Key("c1")}},
             "i0 c0"},
        Case{"PrefixRankIsGone", {Inference("i0"), Cache("c0")}, {}, {.prefix_caches = {Key("c1")}}, "i0 c0"},
        Case{"FollowsAPrefixToItsHost",
             {Inference("i0"), Inference("i1", 2u), HostedBy("i0", Cache("c0")), HostedBy("i1", Cache("c1", 2u))},
             {},
             {.prefix_caches = {Key("c1")}},
             "i1 c1"},
        Case{"UnlessItsHostIsBusy",
             {Inference("i0"), Inference("i1", 3u), HostedBy("i0", Cache("c0")), HostedBy("i1", Cache("c1"))},
             {},
             {.prefix_caches = {Key("c1")}},
             "i0 c0"},
        Case{"AvoidsTheLast",
             {Inference("i0"), Inference("i1", 9u), Cache("c0"), Cache("c1", 9u)},
             {},
             {.avoid_inference = Key("i0"), .avoid_caches = {Key("c0")}},
             "i1 c1"},
        Case{"AvoidedIsBetterThanNone",
             {Inference("i0"), Cache("c0")},
             {},
             {.avoid_inference = Key("i0"), .avoid_caches = {Key("c0")}},
             "i0 c0"},
        Case{"LeavesARankAloneOnWhichEverythingFails",
             {Inference("i0"), Inference("i1", 9u), Cache("c0")},
             {},
             {.prefer_inference = Key("i0"), .avoid_inference = Key("i1"), .failing_inference = {Key("i0")}},
             "i1 c0"},
        Case{"LeavesARankAloneThatSaysThatNothingComesOfWhatItIsAskedFor",
             {Failing(Inference("i0")), Inference("i1", 9u), Cache("c0")},
             {},
             {.prefer_inference = Key("i0"), .avoid_inference = Key("i1")},
             "i1 c0"},
        Case{"OneThatSaysSoIsBetterThanNone", {Failing(Inference("i0")), Cache("c0")}, {}, {}, "i0 c0"},
        Case{"AFailingRankIsBetterThanNone",
             {Inference("i0"), Cache("c0")},
             {},
             {.failing_inference = {Key("i0")}},
             "i0 c0"},
        Case{"HostedCacheRankIsNearest",
             {Inference("i0"), Cache("c0"), HostedBy("i0", Cache("c1", 9u))},
             {},
             {},
             "i0 c1"},
        Case{"HostedCacheRankOnlyForItsHost",
             {Inference("i0"), Inference("i1", 9u), HostedBy("i1", Cache("c1"))},
             {},
             {},
             "i1 c1"},
        Case{"PromptsGoToRanksForPrefill",
             {Decode("d0"), Prefill("p0", 9000, 9u), Cache("c0")},
             {},
             {.prompt_tokens = 257},
             "p0 c0 hand-over"},
        Case{"ShortPromptsGoToRanksThatDecode",
             {Decode("d0", 9u), Prefill("p0"), Cache("c0")},
             {},
             {.prompt_tokens = 256},
             "d0 c0"},
        Case{"DecodeGoesToRanksThatDecode",
             {Decode("d0", 9u), Prefill("p0"), Cache("c0")},
             {},
             {.work = Work::kDecode, .prompt_tokens = 1000},
             "d0 c0"},
        Case{"PrefillByQueuedPromptTokens",
             {Prefill("p0", 5000, 1u), Prefill("p1", 3000, 4u), Decode("d0"), Cache("c0")},
             {},
             {.prompt_tokens = 1000},
             "p1 c0 hand-over"},
        Case{"OwnPromptTokensAreNewerThanAHeartbeat",
             {Prefill("p0"), Prefill("p1", 3000), Decode("d0"), Cache("c0")},
             {{Key("p0"), {.requests = 1, .prompt_tokens = 4000}}},
             {.prompt_tokens = 1000},
             "p1 c0 hand-over"},
        Case{"DecodeBySequencesThenSlots",
             {Decode("d0", 2u, 900u), Decode("d1", 1u, 10u), Decode("d2", 1u, 20u), Prefill("p0"), Cache("c0")},
             {},
             {.work = Work::kDecode},
             "d2 c0"},
        Case{"WithoutARankForPrefillOneThatDecodesDoesAll",
             {Suspect(Prefill("p0")), Decode("d0"), Cache("c0")},
             {},
             {.prompt_tokens = 1000},
             "d0 c0"},
        Case{"WithoutARankThatDecodesOneForPrefillDoesAll",
             {Prefill("p0"), Draining(Decode("d0")), Cache("c0")},
             {},
             {.prompt_tokens = 1000},
             "p0 c0"},
        Case{"WithoutARankThatDecodesOneForPrefillGoesOn",
             {Prefill("p0"), Cache("c0")},
             {},
             {.work = Work::kDecode},
             "p0 c0"},
        Case{"AnotherRankOfThePhaseIsBetterThanOneThatIsNot",
             {Prefill("p0"), Prefill("p1", 9000), Decode("d0"), Cache("c0")},
             {},
             {.prompt_tokens = 1000, .avoid_inference = Key("p0")},
             "p1 c0 hand-over"},
        Case{"NoHandOverToARankThatCannotReachTheCacheRank",
             {Prefill("p0"), Decode("d0"), HostedBy("p0", Cache("c0"))},
             {},
             {.prompt_tokens = 1000},
             "p0 c0"},
        Case{"RanksForBothTakePromptsBesideThoseForPrefill",
             {Prefill("p0", 5000), Inference("i0", 3u), Cache("c0")},
             {},
             {.prompt_tokens = 1000},
             "i0 c0"},
        Case{"HostedCacheRankWithoutItsHost", {Inference("i0"), HostedBy("i1", Cache("c1"))}, {}, {}, "reaches"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace winnow
