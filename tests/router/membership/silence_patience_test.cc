#include "router/membership/silence_patience.h"

#include <gtest/gtest.h>

#include "common/base/recent_worst.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLeast{2000}, kMost{16'000};

SilenceEvidence::Duration Patience(const SilenceEvidence& evidence) {
  return PatienceWith(evidence, kLeast, kMost);
}

TEST(SilencePatienceTest, IsALeaseWhereNobodyIsLate) {
  EXPECT_EQ(Patience({}), kLeast);
  EXPECT_EQ(Patience({.own = milliseconds(500),
                      .others = {milliseconds(500), milliseconds(600), milliseconds(500)},
                      .move = milliseconds(200)}),
            kLeast);
}

TEST(SilencePatienceTest, WhoWasLateAndCameBackIsWaitedForTwiceAsLong) {
  EXPECT_EQ(Patience({.own = milliseconds(1500), .others = {}}), milliseconds(3000));
  EXPECT_EQ(Patience({.own = milliseconds(4000), .others = {}}), milliseconds(8000));
  EXPECT_EQ(Patience({.own = milliseconds(10'000), .others = {}}), kMost);
}

TEST(SilencePatienceTest, WhereMostAreLateTheNextOneIsWaitedForToo) {
  EXPECT_EQ(Patience({.others = {milliseconds(1700), milliseconds(400), milliseconds(2500)}}), milliseconds(5100));
}

TEST(SilencePatienceTest, OneLateRankSaysNothingAboutTheOthers) {
  EXPECT_EQ(Patience({.others = {milliseconds(9000), milliseconds(400)}}), kLeast);
  EXPECT_EQ(Patience({.others = {milliseconds(9000), milliseconds(400), milliseconds(500)}}), kLeast);
}

TEST(SilencePatienceTest, AMoveThatTakesLongIsPutOffForAsLong) {
  EXPECT_EQ(Patience({.others = {}, .move = milliseconds(5500)}), milliseconds(5500));
  EXPECT_EQ(Patience({.others = {}, .move = seconds(60)}), kMost) << "who is dead without a word must be found";
}

TEST(SilencePatienceTest, NobodyIsGivenUpWhereNobodyCouldTakeItsAnswers) {
  EXPECT_EQ(Patience({.others = {}, .has_nowhere_to_go = true}), kMost);
}

TEST(MoveCostTest, IsAMeanOfWhatWasMeasuredLately) {
  MoveCost cost;
  MoveCost::Clock::time_point now{seconds(100)};
  EXPECT_EQ(cost.At(now), milliseconds(0));
  cost.Note(milliseconds(400), now);
  EXPECT_EQ(cost.At(now), milliseconds(400));
  cost.Note(milliseconds(4400), now);
  EXPECT_EQ(cost.At(now), milliseconds(1400)) << "one slow move is none of all";
  now += MoveCost::kForgotten;
  EXPECT_EQ(cost.At(now), milliseconds(0));
  cost.Note(milliseconds(300), now);
  EXPECT_EQ(cost.At(now), milliseconds(300));
}

TEST(RecentWorstTest, HoldsTheWorstForAWhileAndForgetsItByHalves) {
  RecentWorst worst;
  RecentWorst::Clock::time_point now{seconds(100)};
  worst.Note(milliseconds(800), now);
  worst.Note(milliseconds(500), now + seconds(1));
  EXPECT_EQ(worst.At(now + RecentWorst::kHold - seconds(1)), milliseconds(800));
  EXPECT_EQ(worst.At(now + RecentWorst::kHold), milliseconds(400));
  EXPECT_EQ(worst.At(now + 2 * RecentWorst::kHold), milliseconds(200));
  worst.Note(milliseconds(300), now + 2 * RecentWorst::kHold);
  EXPECT_EQ(worst.At(now + 2 * RecentWorst::kHold), milliseconds(300));
  EXPECT_EQ(worst.At(now + 1000 * RecentWorst::kHold), milliseconds(0));
}

}  // namespace
}  // namespace winnow
