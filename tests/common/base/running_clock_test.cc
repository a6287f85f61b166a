#include "common/base/running_clock.h"

#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

class RunningClockTest : public ::testing::Test {
 protected:
  milliseconds Advance(milliseconds by) {
    now_ += by;
    return std::chrono::duration_cast<milliseconds>(clock_.Advance(now_) - start_);
  }

  const RunningClock::Clock::time_point start_{std::chrono::hours(1)};
  RunningClock::Clock::time_point now_ = start_;
  RunningClock clock_{milliseconds(200), start_};
};

TEST_F(RunningClockTest, GoesWithTheSteadyClockWhileItIsRead) {
  EXPECT_EQ(Advance(milliseconds(150)), milliseconds(150));
  EXPECT_EQ(Advance(milliseconds(200)), milliseconds(350));
}

TEST_F(RunningClockTest, CountsOneStepOfAnAbsence) {
  EXPECT_EQ(Advance(milliseconds(100)), milliseconds(100));
  EXPECT_EQ(Advance(milliseconds(60'000)), milliseconds(300));
  EXPECT_EQ(Advance(milliseconds(100)), milliseconds(400));
}

TEST_F(RunningClockTest, DoesNotGoBack) {
  EXPECT_EQ(Advance(milliseconds(100)), milliseconds(100));
  EXPECT_EQ(Advance(milliseconds(-50)), milliseconds(100));
  EXPECT_EQ(Advance(milliseconds(60)), milliseconds(110));
}

}  // namespace
}  // namespace winnow
