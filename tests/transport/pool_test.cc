#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "transport/block_pool.h"
#include "transport/send_window.h"

namespace winnow {
namespace {

TEST(BlockPoolTest, GrowsToTheLargestUseAndThenRecycles) {
  const auto pool = std::make_shared<BlockPool>();
  for (int round = 0; round < 10; ++round) {
    std::vector<BlockPtr> blocks;
    for (int i = 0; i < 7; ++i) blocks.push_back(pool->Take(5000));
  }
  EXPECT_EQ(pool->allocated_blocks(), 7u);
}

TEST(BlockPoolTest, HasRoomForEverySizeItHandsOut) {
  const auto pool = std::make_shared<BlockPool>();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{255}, size_t{256}, size_t{257}, size_t{4096}, size_t{4097},
                            wire::kMaxPayloadBytes - 1, wire::kMaxPayloadBytes}) {
    const BlockPtr block = pool->Take(size);
    ASSERT_EQ(block->bytes().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->payload()) % 64, 0u);
    for (std::byte& b : block->bytes()) b = std::byte{1};  // the address sanitizer watches the end
  }
}

TEST(BlockPoolTest, BlocksOutliveThePoolsOwnerAndComeBackFromOtherThreads) {
  auto pool = std::make_shared<BlockPool>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([blocks = std::make_shared<std::vector<BlockPtr>>(), pool] {
      for (int i = 0; i < 1000; ++i) {
        blocks->push_back(pool->Take(static_cast<size_t>(i)));
        if (blocks->size() > 5) blocks->erase(blocks->begin());
      }
    });
  }
  const BlockPtr last = pool->Take(10);
  pool.reset();
  for (std::thread& thread : threads) thread.join();
  last->bytes()[9] = std::byte{1};
}

TEST(SendWindowTest, CountsBytesReservedAndUnderWay) {
  SendWindow window(100);
  EXPECT_TRUE(window.Reserve(60));
  EXPECT_FALSE(window.Reserve(41));
  EXPECT_TRUE(window.Reserve(40));
  window.Unreserve(40);
  window.Sent(60);
  EXPECT_FALSE(window.Reserve(41));
  EXPECT_TRUE(window.SetConsumed(60, 1));
  EXPECT_TRUE(window.Reserve(100));
}

TEST(SendWindowTest, LetsOneLargePayloadThroughASmallWindow) {
  SendWindow window(100);
  EXPECT_TRUE(window.Reserve(1000));
  EXPECT_FALSE(window.Reserve(0));
}

TEST(SendWindowTest, RefusesReportsThatCannotBeTrue) {
  SendWindow window(100);
  ASSERT_TRUE(window.Reserve(10));
  window.Sent(10);
  EXPECT_FALSE(window.SetConsumed(11, 1));
  EXPECT_FALSE(window.SetConsumed(10, 2));
  EXPECT_TRUE(window.SetConsumed(10, 1));
  EXPECT_FALSE(window.SetConsumed(9, 1));
  EXPECT_FALSE(window.SetConsumed(10, 0));
}

}  // namespace
}  // namespace winnow
