#include "kernels/cpu/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace winnow {
namespace {

TEST(ThreadTeam, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadTeam team(threads);
    ASSERT_EQ(team.size(), threads);
    for (int count : {0, 1, 2, 7, 64, 1000}) {
      for (int grain : {1, 3, 64}) {
        std::vector<int> calls(count);
        std::vector<int> bad_worker(count);
        team.ParallelFor(
            count,
            [&](int index, int worker) {
              ++calls[index];
              bad_worker[index] = worker < 0 || worker >= threads;
            },
            grain);
        EXPECT_EQ(std::count(calls.begin(), calls.end(), 1), count);
        EXPECT_EQ(std::accumulate(bad_worker.begin(), bad_worker.end(), 0), 0);
      }
    }
  }
}

// Results of a loop are there when it returns, also when loops follow each other at once.
TEST(ThreadTeam, ManyShortLoopsInARow) {
  ThreadTeam team(3);
  std::vector<int> values(16);
  for (int round = 1; round <= 20000; ++round) {
    team.ParallelFor(16, [&](int index, int) { values[index] += index; });
    ASSERT_EQ(values[15], 15 * round);
  }
  for (int i = 0; i < 16; ++i) EXPECT_EQ(values[i], 20000 * i);
}

TEST(ThreadTeam, ServesAnotherThreadAfterItsCreator) {
  ThreadTeam team(2);
  std::vector<int> values(100);
  team.ParallelFor(100, [&](int index, int) { ++values[index]; });
  std::thread other([&] { team.ParallelFor(100, [&](int index, int) { ++values[index]; }); });
  other.join();
  for (int v : values) EXPECT_EQ(v, 2);
}

// Both indices must run at the same time to end: the second worker really takes part.
TEST(ThreadTeam, WorkersRunAtTheSameTime) {
  ThreadTeam team(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    team.ParallelFor(2, [&](int, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
  }
}

TEST(ThreadTeam, SmallTeamsLeaveTheCallersCoreToIt) {
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  const int num_cores = CPU_COUNT(&cores);
  if (num_cores < 2 || num_cores > 4) GTEST_SKIP() << "the team would be too large, or one thread: " << num_cores;
  ThreadTeam team(num_cores);
  std::thread caller([&] {
    for (int turn = 0; turn < 2 * CPU_SETSIZE; ++turn) {
      const int core = turn % CPU_SETSIZE;
      if (!CPU_ISSET(core, &cores)) continue;
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(core, &only);
      ASSERT_EQ(sched_setaffinity(0, sizeof only, &only), 0);
      std::atomic<int> worker_core{-1};
      team.ParallelFor(2, [&](int, int worker) {
        if (worker != 0) worker_core = sched_getcpu();
        while (worker_core < 0) std::this_thread::yield();
      });
      EXPECT_NE(worker_core, core);
    }
  });
  caller.join();
}

}  // namespace
}  // namespace winnow
