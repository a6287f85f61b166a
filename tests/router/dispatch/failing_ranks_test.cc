#include "router/dispatch/failing_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr FailingRanks::Time kStart{std::chrono::hours(1)};
const RankKey kRank{.rank = "inference-0", .incarnation = 7};

TEST(FailingRanksTest, ARankThatFailsAgainAndAgainIsLeftAloneForLongerEachTime) {
  FailingRanks ranks;
  FailingRanks::Time now = kStart;
  for (uint32_t i = 0; i + 1 < FailingRanks::kFailures; ++i) ranks.Failed(kRank, now += seconds(1));
  EXPECT_THAT(ranks.At(now), IsEmpty());
  for (int pause_s : {1, 2, 4, 8, 16, 30, 30}) {
    ranks.Failed(kRank, now += seconds(1));
    EXPECT_THAT(ranks.At(now + seconds(pause_s) - std::chrono::milliseconds(1)), ElementsAre(kRank)) << pause_s;
    EXPECT_THAT(ranks.At(now + seconds(pause_s)), IsEmpty()) << pause_s;
  }
}

TEST(FailingRanksTest, OneThatBringsATokenIsAsGoodAsAny) {
  FailingRanks ranks;
  for (uint32_t i = 0; i < FailingRanks::kFailures; ++i) ranks.Failed(kRank, kStart + seconds(i));
  ranks.Succeeded(kRank);
  ranks.Failed(kRank, kStart + seconds(9));
  EXPECT_THAT(ranks.At(kStart + seconds(9)), IsEmpty());
}

TEST(FailingRanksTest, WhatFailsAtOnceHasOneCause) {
  FailingRanks ranks;
  for (int i = 0; i < 100; ++i) ranks.Failed(kRank, kStart);
  EXPECT_THAT(ranks.At(kStart), IsEmpty());
}

}  // namespace
}  // namespace winnow
