#include "inference_rank/backend/shard_threads.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace winnow {
namespace {

TEST(ShardThreads, EveryShardWorksOnAThreadOfItsOwn) {
  ShardThreads threads(3);
  std::array<std::thread::id, 3> first, second;
  threads.Run([&](int shard) { first[shard] = std::this_thread::get_id(); }, [] { FAIL() << "nobody waited"; });
  threads.Run([&](int shard) { second[shard] = std::this_thread::get_id(); }, [] {});
  EXPECT_EQ(first, second) << "the same in every run";
  EXPECT_TRUE(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
  for (const std::thread::id id : first) EXPECT_NE(id, std::this_thread::get_id());
}

TEST(ShardThreads, CallsAreServedWhileAllWait) {
  ShardThreads threads(4);
  std::array<int, 4> reached = {};  // not atomic: what serving reads and writes, nobody else touches meanwhile
  int served = 0;
  for (int run = 0; run < 20; ++run) {
    threads.Run(
        [&](int shard) {
          for (int i = 0; i < 50; ++i) {
            ++reached[shard];
            EXPECT_TRUE(threads.AwaitAll());
            EXPECT_EQ(served, reached[shard]);
          }
        },
        [&] {
          ++served;
          for (const int count : reached) EXPECT_EQ(count, served);
        });
  }
  EXPECT_EQ(served, 20 * 50);
}

TEST(ShardThreads, WhoEndsEarlyFreesTheOthersForThisRun) {
  ShardThreads threads(3);
  for (int run = 0; run < 20; ++run) {
    int served = 0;
    std::array<int, 3> met = {};
    threads.Run(
        [&](int shard) {
          for (int i = 0; i < 10; ++i) {
            if (shard == run % 3 && i == 4) return;
            met[shard] += threads.AwaitAll();
          }
        },
        [&] { ++served; });
    EXPECT_EQ(served, 4);
    EXPECT_EQ(met, (std::array<int, 3>{4, 4, 4}));
  }
}

}  // namespace
}  // namespace winnow
