#include "router/membership/slow_start.h"

#include <gtest/gtest.h>

#include <vector>

#include "router/dispatch/routing_policy.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Time = std::chrono::steady_clock::time_point;

constexpr Time kJoined{std::chrono::hours(1)};

TEST(SlowStart, TheShareGrowsByTenths) {
  const auto share = [](milliseconds age) {
    return SlowStart{.window = seconds(10), .now = kJoined + age}.ShareOf(kJoined);
  };
  EXPECT_EQ(share(milliseconds(0)), 1u);
  EXPECT_EQ(share(milliseconds(1999)), 1u);
  EXPECT_EQ(share(milliseconds(2000)), 2u);
  EXPECT_EQ(share(milliseconds(9999)), 9u);
  EXPECT_EQ(share(milliseconds(10'000)), 10u);
  EXPECT_EQ(share(std::chrono::hours(100)), 10u);
  EXPECT_EQ(SlowStart{}.ShareOf(kJoined), 10u) << "without a window";
}

TEST(SlowStart, ClocksThatDisagreeDoNoHarm) {
  EXPECT_EQ((SlowStart{.window = seconds(10), .now = kJoined - seconds(5)}.ShareOf(kJoined)), 1u);
}

RankRecord Rank(v1::Role role, const std::string& name, Time joined, uint32_t running = 0) {
  RankRecord record;
  record.identity.set_role(role);
  record.identity.set_rank(name);
  record.identity.set_incarnation(1);
  record.load.set_running_sequences(running);
  record.load.set_free_bytes(100);
  record.joined = joined;
  return record;
}

// Sequences that the newcomer among four cache ranks gets of `arrivals`, which stay, while the others have `busy` each.
int SequencesOfTheNewcomer(milliseconds age, uint32_t busy, int arrivals) {
  MembershipSnapshot snapshot;
  for (const char* name : {"c0", "c1", "c2"}) {
    snapshot.ranks.push_back(Rank(v1::ROLE_CACHE_RANK, name, Time(), busy));
  }
  snapshot.ranks.push_back(Rank(v1::ROLE_CACHE_RANK, "c3", kJoined));
  snapshot.ranks.push_back(Rank(v1::ROLE_INFERENCE_RANK, "i0", Time()));
  const SlowStart slow_start{.window = seconds(10), .now = kJoined + age};
  AssignedCounts assigned;
  for (const RankRecord& record : snapshot.ranks) {
    assigned[KeyOf(record.identity)].requests = record.load.running_sequences();
  }
  int of_newcomer = 0;
  for (int i = 0; i < arrivals; ++i) {
    const Route route = ChooseRoute(snapshot, assigned, {}, slow_start).value();
    ++assigned[KeyOf(route.caches[0])].requests;
    of_newcomer += route.caches[0].rank() == "c3";
  }
  return of_newcomer;
}

TEST(SlowStart, ANewcomerIsNotGivenEverythingAtOnce) {
  // Without slow start it takes all until it has as many as the others.
  EXPECT_EQ(SequencesOfTheNewcomer(seconds(10), 20, 20), 20);
  // With a tenth of a share it stops at a tenth of what the others have.
  EXPECT_EQ(SequencesOfTheNewcomer(milliseconds(0), 20, 20), 2);
  const int half = SequencesOfTheNewcomer(seconds(5), 20, 40);
  EXPECT_GE(half, 10);
  EXPECT_LE(half, 16);
}

TEST(SlowStart, SharesGrowWithAge) {
  int before = 0;
  for (int tenths = 1; tenths <= 10; ++tenths) {
    const int now = SequencesOfTheNewcomer(seconds(tenths), 30, 60);
    EXPECT_GE(now, before) << tenths;
    before = now;
  }
  EXPECT_GT(before, 30);
}

TEST(SlowStart, AClusterThatStartsIsServedEvenly) {
  MembershipSnapshot snapshot;
  for (int i = 0; i < 4; ++i) {
    snapshot.ranks.push_back(Rank(v1::ROLE_CACHE_RANK, "c" + std::to_string(i), kJoined + milliseconds(40 * i)));
  }
  snapshot.ranks.push_back(Rank(v1::ROLE_INFERENCE_RANK, "i0", kJoined));
  AssignedCounts assigned;
  for (int i = 0; i < 8; ++i) {
    const SlowStart slow_start{.window = seconds(10), .now = kJoined + milliseconds(500)};
    ++assigned[KeyOf(ChooseRoute(snapshot, assigned, {}, slow_start).value().caches[0])].requests;
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(assigned[(RankKey{"c" + std::to_string(i), 1})].requests, 2u);
}

TEST(SlowStart, ANewcomerIsBetterThanNone) {
  MembershipSnapshot snapshot;
  snapshot.ranks.push_back(Rank(v1::ROLE_CACHE_RANK, "c0", kJoined));
  snapshot.ranks.push_back(Rank(v1::ROLE_INFERENCE_RANK, "i0", kJoined));
  EXPECT_TRUE(ChooseRoute(snapshot, {}, {}, {.window = seconds(10), .now = kJoined}).ok());
}

}  // namespace
}  // namespace winnow
