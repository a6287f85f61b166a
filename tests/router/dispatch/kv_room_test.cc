#include "router/dispatch/kv_room.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

// A position of one list takes 2 * 8 * 2 bytes and its key 8 * 2 again; blocks are of 32.
constexpr KvLayout kLayout{.num_layers = 3, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 8};
constexpr uint64_t kListBlock = 32 * 48;

MembershipSnapshot CacheRanks(std::initializer_list<uint64_t> total_blocks) {
  MembershipSnapshot snapshot;
  for (const uint64_t blocks : total_blocks) {
    RankRecord& record = snapshot.ranks.emplace_back();
    record.identity.set_role(v1::ROLE_CACHE_RANK);
    record.load.set_total_bytes(blocks * kListBlock);
  }
  RankRecord& inference = snapshot.ranks.emplace_back();
  inference.identity.set_role(v1::ROLE_INFERENCE_RANK);
  inference.load.set_total_bytes(1 << 30);
  return snapshot;
}

TEST(KvRoom, IsSetAsideInWholeBlocks) {
  EXPECT_EQ(KvBytes(kLayout, 6, 0), 0u);
  EXPECT_EQ(KvBytes(kLayout, 6, 1), 6 * kListBlock);
  EXPECT_EQ(KvBytes(kLayout, 6, 32), 6 * kListBlock);
  EXPECT_EQ(KvBytes(kLayout, 1, 33), 2 * kListBlock);
}

TEST(KvRoom, TheLargestCacheRankHoldsTheLongestSequence) {
  EXPECT_EQ(MostPositions(CacheRanks({6, 18, 11}), kLayout, {1, 1}), 3 * 32u);
  EXPECT_EQ(MostPositions(CacheRanks({17}), kLayout, {1, 1}), 2 * 32u);
  EXPECT_EQ(MostPositions(CacheRanks({5}), kLayout, {1, 1}), 0u);
  EXPECT_EQ(MostPositions(CacheRanks({}), kLayout, {1, 1}), 0u);
}

TEST(KvRoom, OfShardsTheSmallestCacheRankCounts) {
  // Two shards of 3 lists; four of a head each in layers 0 and 1, or in layer 2 alone.
  EXPECT_EQ(MostPositions(CacheRanks({6, 18, 12}), kLayout, {2, 2}), 4 * 32u);
  EXPECT_EQ(MostPositions(CacheRanks({6, 18, 12}), kLayout, {4, 4}), 0u) << "too few cache ranks";
  EXPECT_EQ(MostPositions(CacheRanks({6, 18, 12, 7}), kLayout, {4, 4}), 3 * 32u);
  EXPECT_EQ(MostPositions(CacheRanks({6, 18, 12}), kLayout, {1, 6}), 4 * 32u) << "the best cut";
}

TEST(KvRoom, IsNotKnownBeforeAllHaveSaid) {
  EXPECT_EQ(MostPositions(CacheRanks({18, 0}), kLayout, {1, 1}), 0u);
  MembershipSnapshot snapshot = CacheRanks({18, 60});
  snapshot.ranks[1].suspect = true;
  EXPECT_EQ(MostPositions(snapshot, kLayout, {1, 1}), 3 * 32u);
}

}  // namespace
}  // namespace winnow
