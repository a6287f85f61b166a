#include "router/tasks/strand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "router/tasks/timer_queue.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;

TEST(StrandTest, RunsTasksInOrderEvenWhenTheyPost) {
  Strand strand;
  std::vector<int> order;
  strand.Post([&] {
    strand.Post([&] { order.push_back(2); });
    order.push_back(1);
  });
  strand.Post([&] { order.push_back(3); });
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(StrandTest, RunsOneTaskAtATime) {
  Strand strand;
  int unprotected = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) strand.Post([&] { ++unprotected; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  strand.Post([&] { EXPECT_EQ(unprotected, 20000); });
}

TEST(StrandTest, AHeldStrandWaitsForDrain) {
  Strand strand(Strand::Start::kHeld);
  int runs = 0;
  strand.Post([&] { ++runs; });
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(strand.Resume());
  EXPECT_EQ(runs, 0);
  strand.Drain();
  EXPECT_EQ(runs, 1);
  strand.Post([&] { ++runs; });
  EXPECT_EQ(runs, 2);
  Strand empty(Strand::Start::kHeld);
  EXPECT_FALSE(empty.Resume());
  empty.Post([&] { ++runs; });
  EXPECT_EQ(runs, 3);
}

TEST(StrandTest, CloseWaitsForTheTaskOfAnotherThread) {
  Strand strand;
  std::mutex mutex;
  std::condition_variable changed;
  bool running = false;
  std::atomic<bool> ended{false};
  std::thread runner([&] {
    strand.Post([&] {
      {
        std::lock_guard lock(mutex);
        running = true;
      }
      changed.notify_all();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ended = true;
    });
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return running; });
  }
  strand.Post([] { ADD_FAILURE() << "queued behind the running task, then dropped"; });
  strand.Close();
  EXPECT_TRUE(ended);
  strand.Post([] { ADD_FAILURE() << "posted after Close"; });
  runner.join();
}

TEST(StrandTest, ATaskMayCloseAndDestroyItsStrand) {
  auto strand = std::make_unique<Strand>();
  int runs = 0;
  strand->Post([&] {
    strand->Post([&] { ++runs; });
    strand->Close();
    strand.reset();
    ++runs;
  });
  EXPECT_EQ(runs, 1);
}

TEST(TimerQueueTest, RunsInOrderOfTimeAndSkipsWhatIsCancelled) {
  TimerQueue timers;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> order;
  auto note = [&](int i) {
    return [&, i] {
      std::lock_guard lock(mutex);
      order.push_back(i);
      changed.notify_all();
    };
  };
  const auto start = TimerQueue::Clock::now() + std::chrono::milliseconds(20);
  timers.At(start + std::chrono::milliseconds(2), note(3));
  const auto cancelled = timers.At(start + std::chrono::milliseconds(1), note(2));
  timers.At(start, note(1));
  timers.Cancel(cancelled);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return order.size() >= 2; });
  EXPECT_THAT(order, ElementsAre(1, 3));
}

}  // namespace
}  // namespace winnow
