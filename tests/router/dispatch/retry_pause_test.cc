#include "router/dispatch/retry_pause.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RetryPauseTest, TheFirstRetryIsImmediateHoweverTheAttemptWasLost) {
  for (const Loss loss : {Loss::kRankEnded, Loss::kRankSilent, Loss::kCacheLate, Loss::kFailed}) {
    EXPECT_EQ(PauseBeforeRetry(1, loss, seconds(5), 1), milliseconds(0));
  }
}

TEST(RetryPauseTest, PausesDoubleUpToTheLongest) {
  const auto pause = [](uint32_t fruitless) { return PauseBeforeRetry(fruitless, Loss::kRankEnded, seconds(9), 1); };
  EXPECT_EQ(pause(2), milliseconds(10));
  EXPECT_EQ(pause(3), milliseconds(20));
  EXPECT_EQ(pause(6), milliseconds(160));
  EXPECT_EQ(pause(9), milliseconds(1000));
  EXPECT_EQ(pause(1000), milliseconds(1000));
}

TEST(RetryPauseTest, ALateCacheRankIsAskedAgainTheLaterTheLongerItTook) {
  const auto pause = [](milliseconds lasted) { return PauseBeforeRetry(2, Loss::kCacheLate, lasted, 1); };
  EXPECT_EQ(pause(milliseconds(2)), milliseconds(10));
  EXPECT_EQ(pause(milliseconds(500)), milliseconds(250));
  EXPECT_EQ(pause(milliseconds(5000)), milliseconds(2500));
  EXPECT_EQ(pause(milliseconds(60'000)), milliseconds(4000));
}

TEST(RetryPauseTest, JitterTakesUpToAQuarter) {
  EXPECT_EQ(PauseBeforeRetry(9, Loss::kFailed, seconds(0), 0), milliseconds(750));
  EXPECT_EQ(PauseBeforeRetry(9, Loss::kFailed, seconds(0), 0.5), milliseconds(875));
}

}  // namespace
}  // namespace winnow
