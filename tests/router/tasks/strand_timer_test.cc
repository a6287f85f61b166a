#include "router/tasks/strand_timer.h"

#include <gtest/gtest.h>

#include <future>

namespace winnow {
namespace {

using Clock = TimerQueue::Clock;
constexpr std::chrono::hours kNever{1};

class StrandTimerTest : public ::testing::Test {
 protected:
  // One thread runs all timers in the order of their times: those that were due have posted when this returns.
  void AwaitDueTimers() {
    std::promise<void> done;
    timers_.At(Clock::now(), [&] { done.set_value(); });
    done.get_future().wait();
  }
  // Runs `task` on the strand, which holds back what timers post meanwhile; that has run when this returns.
  void OnStrand(const std::function<void()>& task) { strand_.Post(task); }

  TimerQueue timers_;
  Strand strand_;
  StrandTimer timer_{&timers_, strand_};
  int first_ = 0, second_ = 0;
};

TEST_F(StrandTimerTest, RunsItsFunctionOnTheStrandOnce) {
  OnStrand([&] {
    timer_.Set(Clock::now(), [&] { ++first_; });
    AwaitDueTimers();
    EXPECT_EQ(first_, 0) << "the strand is busy";
    EXPECT_TRUE(timer_.is_set());
  });
  EXPECT_EQ(first_, 1);
  EXPECT_FALSE(timer_.is_set());
}

TEST_F(StrandTimerTest, ACancelledFunctionDoesNotRunThoughItsTimeHadCome) {
  OnStrand([&] {
    timer_.Set(Clock::now(), [&] { ++first_; });
    AwaitDueTimers();
    timer_.Cancel();
    EXPECT_FALSE(timer_.is_set());
  });
  EXPECT_EQ(first_, 0);
}

// What a request that waits for a rank a second time needs: the end of the first wait must not end the second one.
TEST_F(StrandTimerTest, AReplacedFunctionIsNotTakenForTheNewOne) {
  OnStrand([&] {
    timer_.Set(Clock::now(), [&] { ++first_; });
    AwaitDueTimers();
    timer_.Cancel();
    timer_.Set(Clock::now() + kNever, [&] { ++second_; });
  });
  EXPECT_EQ(first_ + second_, 0);
  EXPECT_TRUE(timer_.is_set());
  OnStrand([&] {
    timer_.Set(Clock::now(), [&] { ++second_; });
    AwaitDueTimers();
  });
  EXPECT_EQ(first_, 0);
  EXPECT_EQ(second_, 1);
}

TEST_F(StrandTimerTest, MayBeSetByItsOwnFunction) {
  OnStrand([&] {
    timer_.Set(Clock::now(), [&] { timer_.Set(Clock::now() + kNever, [&] { ++second_; }); });
    AwaitDueTimers();
  });
  EXPECT_TRUE(timer_.is_set());
  timer_.Cancel();
}

}  // namespace
}  // namespace winnow
