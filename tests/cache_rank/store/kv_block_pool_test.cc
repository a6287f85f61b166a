#include "cache_rank/store/kv_block_pool.h"

#include <gtest/gtest.h>

#include "tests/cache_rank/reference.h"

namespace winnow {
namespace {

std::unique_ptr<KvBlockPool> PoolOf(size_t blocks) {
  const KvLayout layout = test::SmallShape().layout;
  return KvBlockPool::Create(blocks * BlockBytes(layout) + 1, layout).value();
}

TEST(KvBlockPool, HoldsAsManyBlocksAsFitItsMemory) {
  EXPECT_EQ(PoolOf(7)->total(), 7u);
  const KvLayout layout = test::SmallShape().layout;
  const size_t least = layout.num_kv_heads * BlockBytes(layout);
  EXPECT_TRUE(KvBlockPool::Create(least, layout).ok());
  const absl::Status refused = KvBlockPool::Create(least - 1, layout).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find(absl::StrCat("needs ", least, " at least")), absl::string_view::npos) << refused;
}

TEST(KvBlockPool, RefusesWhatDoesNotFitBesideReservations) {
  auto pool = PoolOf(4);
  KvBlockReservation three = pool->Reserve(3).value();
  EXPECT_EQ(pool->Reserve(2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->free(), 1u);
  EXPECT_EQ(three.Extend(2).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(three.Extend(1).ok());
  EXPECT_EQ(pool->free(), 0u);
}

TEST(KvBlockPool, CountsSharedBlocksOnceUntilTheLastReferenceGoes) {
  auto pool = PoolOf(4);
  KvBlockReservation reservation = pool->Reserve(2).value();
  KvBlock block = reservation.Allocate();
  EXPECT_EQ(pool->used(), 1u);
  EXPECT_EQ(pool->reserved(), 1u);
  KvBlock second = block.Share();
  EXPECT_EQ(second.rows(), block.rows());
  EXPECT_TRUE(block.shared());
  EXPECT_EQ(pool->used(), 1u);
  block = KvBlock();
  EXPECT_EQ(pool->used(), 1u);
  EXPECT_FALSE(second.shared());
  reservation.Reclaim(std::move(second));
  EXPECT_EQ(pool->used(), 0u);
  EXPECT_EQ(pool->reserved(), 2u);
}

TEST(KvBlockPool, GivesEveryReservedBlockItsOwnMemoryAndAZeroedTile) {
  auto pool = PoolOf(5);
  const KvLayout layout = test::SmallShape().layout;
  for (int round = 0; round < 2; ++round) {  // the second round reuses memory that the first one wrote
    KvBlockReservation reservation = pool->Reserve(5).value();
    std::vector<KvBlock> blocks;
    for (int i = 0; i < 5; ++i) {
      blocks.push_back(reservation.Allocate());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().rows()) % 64, 0u);
      for (size_t b = 0; b < layout.block_bytes() / 2; ++b) ASSERT_EQ(blocks.back().tile()[b], std::byte{0});
      std::fill_n(blocks.back().rows(), BlockBytes(layout), static_cast<std::byte>(i + 1));
    }
    for (int i = 0; i < 5; ++i) EXPECT_EQ(blocks[i].rows()[0], static_cast<std::byte>(i + 1));
  }
  EXPECT_EQ(pool->free(), 5u);
}

}  // namespace
}  // namespace winnow
