// Calls that are made until they have an answer, those of one address in their order.
#include "common/rpc/retried_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <vector>

namespace winnow {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr RetriedCalls::Options kQuick{.first_pause = milliseconds(1), .longest_pause = milliseconds(4)};

// Calls that have an answer after so many without one.
class Calls {
 public:
  RetriedCalls::Call Numbered(int number, int without_answer = 0) {
    return [this, number, left = without_answer]() mutable {
      const std::lock_guard lock(mutex_);
      ++tries_;
      changed_.notify_all();
      if (left-- > 0) return false;
      done_.push_back(number);
      return true;
    };
  }
  std::vector<int> AwaitDone(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done_.size() >= count; }));
    return done_;
  }
  void AwaitTries(int count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return tries_ >= count; }));
  }
  std::vector<int> done() { return AwaitDone(0); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> done_;
  int tries_ = 0;
};

TEST(RetriedCalls, ThoseOfOneAddressKeepTheirOrderWhoeverHasNoAnswer) {
  Calls first, second;
  RetriedCalls calls(kQuick);
  calls.Add("a", first.Numbered(1, /*without_answer=*/5));
  calls.Add("a", first.Numbered(2));
  calls.Add("a", first.Numbered(3, /*without_answer=*/2));
  calls.Add("b", second.Numbered(4));
  EXPECT_THAT(second.AwaitDone(1), ElementsAre(4));
  EXPECT_THAT(first.AwaitDone(3), ElementsAre(1, 2, 3));
}

TEST(RetriedCalls, OneThatWaitsForItsPauseKeepsNobodyBack) {
  Calls stopped, other;
  RetriedCalls calls({.first_pause = std::chrono::hours(1), .longest_pause = std::chrono::hours(1)});
  calls.Add("a", stopped.Numbered(1, /*without_answer=*/1));
  stopped.AwaitTries(1);
  calls.Add("b", other.Numbered(2));
  EXPECT_THAT(other.AwaitDone(1), ElementsAre(2));
  EXPECT_THAT(stopped.done(), IsEmpty());
}

TEST(RetriedCalls, AreGivenUpWhenPatienceEnds) {
  Calls stopped, other;
  RetriedCalls calls({.first_pause = milliseconds(1), .patience = milliseconds(0)});
  calls.Add("a", stopped.Numbered(1, /*without_answer=*/1));
  stopped.AwaitTries(1);
  calls.Add("b", other.Numbered(2));
  other.AwaitDone(1);
  calls.Stop(RetriedCalls::AtStop::kMake);
  EXPECT_THAT(stopped.done(), IsEmpty());
}

TEST(RetriedCalls, StoppingMakesWhatIsQueuedButBehindOneWithoutAnAnswer) {
  Calls stopped, other;
  RetriedCalls calls({.first_pause = std::chrono::hours(1), .longest_pause = std::chrono::hours(1)});
  calls.Add("a", stopped.Numbered(1, /*without_answer=*/1));
  calls.Add("a", stopped.Numbered(2));
  for (int i = 3; i < 10; ++i) calls.Add("b", other.Numbered(i));
  calls.Stop(RetriedCalls::AtStop::kMake);
  EXPECT_THAT(stopped.done(), IsEmpty());
  EXPECT_EQ(other.done().size(), 7u);
  calls.Add("b", other.Numbered(10));
  EXPECT_EQ(other.done().size(), 7u) << "too late";
}

TEST(RetriedCalls, StoppingCanDropWhatIsQueued) {
  Calls stopped;
  RetriedCalls calls({.first_pause = std::chrono::hours(1), .longest_pause = std::chrono::hours(1)});
  calls.Add("a", stopped.Numbered(1, /*without_answer=*/1));
  stopped.AwaitTries(1);
  calls.Stop(RetriedCalls::AtStop::kDrop);
  EXPECT_THAT(stopped.done(), IsEmpty());
}

TEST(RetriedCalls, NoMoreAreQueuedThanMayBe) {
  Calls stopped;
  RetriedCalls calls({.first_pause = milliseconds(1), .longest_pause = milliseconds(1), .max_queued = 2});
  std::mutex gate;
  {
    const std::lock_guard shut(gate);
    calls.Add("a", [&gate] {
      const std::lock_guard open(gate);
      return true;
    });
    for (int i = 1; i <= 3; ++i) calls.Add("a", stopped.Numbered(i));
  }
  EXPECT_THAT(stopped.AwaitDone(1), ElementsAre(1));
}

}  // namespace
}  // namespace winnow
