#include "inference_rank/links/link_silence.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

using std::chrono::milliseconds;

// What a watch does with a link: it looks every kLook, and asks where it is told to.
class LinkSilenceTest : public testing::Test {
 protected:
  struct There {
    bool awaited = true;
    bool speaks = false;   // frames come
    bool expired = false;  // to a router
    bool answers = false;  // when it is asked
  };
  // Looks for `time`, or until the link is given up: whether it was.
  bool GivesUpWithin(milliseconds time, const There& there) {
    for (const auto end = now_ + time; now_ < end;) {
      now_ += LinkSilence::kLook;
      num_heard_ += there.speaks;
      if (!silence_.Look(there.awaited, num_heard_, there.expired, now_)) continue;
      ++num_asked_;
      if (silence_.GivesUp(there.answers, now_)) return true;
    }
    return false;
  }

  LinkSilence silence_;
  LinkSilence::Time now_{};
  uint64_t num_heard_ = 0;
  int num_asked_ = 0;
};

TEST_F(LinkSilenceTest, NobodyIsAskedWhereFramesComeOrNobodyWaits) {
  EXPECT_FALSE(GivesUpWithin(milliseconds(20'000), {.speaks = true, .expired = true}));
  EXPECT_FALSE(GivesUpWithin(milliseconds(20'000), {.awaited = false, .expired = true}));
  EXPECT_EQ(num_asked_, 0);
}

TEST_F(LinkSilenceTest, OneWhoAnswersIsOnlyBusyHoweverLong) {
  EXPECT_FALSE(GivesUpWithin(milliseconds(60'000), {.answers = true}));
  EXPECT_FALSE(GivesUpWithin(milliseconds(60'000), {.expired = true, .answers = true}));
  EXPECT_GT(num_asked_, 0);
}

TEST_F(LinkSilenceTest, ACacheRankThatIsSilentToARouterTooIsGivenUpAtOnce) {
  EXPECT_FALSE(GivesUpWithin(milliseconds(2'000), {}));
  EXPECT_TRUE(GivesUpWithin(LinkSilence::kLook, {.expired = true}));
}

TEST_F(LinkSilenceTest, ALinkThatAloneIsCutIsGivenUpWhenPatienceIsOver) {
  EXPECT_FALSE(GivesUpWithin(LinkSilence::kPatience - LinkSilence::kLook, {}));
  EXPECT_TRUE(GivesUpWithin(2 * LinkSilence::kLook, {}));
}

TEST_F(LinkSilenceTest, PatienceBeginsAnewWithEachFrame) {
  EXPECT_FALSE(GivesUpWithin(LinkSilence::kPatience - LinkSilence::kLook, {}));
  EXPECT_FALSE(GivesUpWithin(LinkSilence::kLook, {.speaks = true}));
  EXPECT_FALSE(GivesUpWithin(LinkSilence::kPatience - LinkSilence::kLook, {}));
}

TEST_F(LinkSilenceTest, ALinkThatStaysSilentBehindACutIsGivenUp) {
  EXPECT_FALSE(GivesUpWithin(milliseconds(2'000), {}));
  EXPECT_TRUE(GivesUpWithin(LinkSilence::kAfterAnswer + 2 * LinkSilence::kLook, {.answers = true}));
}

TEST_F(LinkSilenceTest, ALinkThatSpeaksAgainBehindACutStays) {
  EXPECT_FALSE(GivesUpWithin(milliseconds(2'000), {}));
  EXPECT_FALSE(GivesUpWithin(LinkSilence::kLook, {.answers = true}));
  EXPECT_FALSE(GivesUpWithin(LinkSilence::kLook, {.speaks = true}));
  EXPECT_FALSE(GivesUpWithin(milliseconds(20'000), {.answers = true}));
}

// On a machine that has too little CPU nobody answers for seconds, and comes back.
TEST_F(LinkSilenceTest, WhoHasComeBackFromALongSilenceIsWaitedForTwiceAsLong) {
  EXPECT_FALSE(GivesUpWithin(milliseconds(3'500), {}));
  EXPECT_FALSE(GivesUpWithin(LinkSilence::kLook, {.speaks = true}));
  EXPECT_FALSE(GivesUpWithin(milliseconds(6'500), {}));
  EXPECT_TRUE(GivesUpWithin(milliseconds(1'500), {}));
  // The next link to the same cache rank: it was given up too early, or leads nowhere either.
  silence_.BeginAnew();
  EXPECT_FALSE(GivesUpWithin(milliseconds(13'000), {}));
  EXPECT_TRUE(GivesUpWithin(milliseconds(4'000), {})) << "no longer than kLongestPatience";
}

TEST_F(LinkSilenceTest, ALinkThatIsMadeAnewBeginsWithoutASilence) {
  EXPECT_FALSE(GivesUpWithin(milliseconds(3'000), {}));
  silence_.BeginAnew();
  EXPECT_FALSE(GivesUpWithin(milliseconds(3'000), {}));
}

}  // namespace
}  // namespace winnow
