#include "common/base/kv_shard.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

KvLayout Layout(int layers, int kv_heads) {
  return {.num_layers = layers, .num_query_heads = 4 * kv_heads, .num_kv_heads = kv_heads, .head_dim = 16};
}

TEST(KvShard, AreByHeadFirst) {
  const KvLayout layout = Layout(6, 4);
  EXPECT_EQ(CutIntoShards(layout, 1).value(), std::vector<KvShard>{WholeModel(layout)});
  EXPECT_EQ(CutIntoShards(layout, 2).value(), (std::vector<KvShard>{{0, 2, 0, 6}, {2, 2, 0, 6}}));
  EXPECT_EQ(CutIntoShards(layout, 3).value(), (std::vector<KvShard>{{0, 2, 0, 6}, {2, 1, 0, 6}, {3, 1, 0, 6}}));
}

TEST(KvShard, AreByLayersBeyondTheHeads) {
  EXPECT_EQ(CutIntoShards(Layout(6, 2), 4).value(),
            (std::vector<KvShard>{{0, 1, 0, 3}, {0, 1, 3, 3}, {1, 1, 0, 3}, {1, 1, 3, 3}}));
  EXPECT_EQ(CutIntoShards(Layout(5, 2), 3).value(), (std::vector<KvShard>{{0, 1, 0, 3}, {0, 1, 3, 2}, {1, 1, 0, 5}}));
}

// Whatever the numbers, each list is in exactly one shard, and no shard is empty.
TEST(KvShard, HoldEachListOnce) {
  for (int layers = 1; layers <= 7; ++layers) {
    for (int heads = 1; heads <= 5; ++heads) {
      const KvLayout layout = Layout(layers, heads);
      for (int n = 1; n <= layers * heads; ++n) {
        const std::vector<KvShard> shards = CutIntoShards(layout, n).value();
        ASSERT_EQ(shards.size(), static_cast<size_t>(n));
        for (const KvShard& shard : shards) EXPECT_TRUE(CheckShard(layout, shard).ok()) << layers << heads << n;
        for (int layer = 0; layer < layers; ++layer) {
          for (int head = 0; head < heads; ++head) {
            int holders = 0;
            for (const KvShard& shard : shards) holders += shard.HasLayer(layer) && shard.HasHead(head);
            EXPECT_EQ(holders, 1) << layers << " x " << heads << " in " << n << ": " << layer << ", " << head;
          }
        }
      }
    }
  }
}

TEST(KvShard, ThereAreNoMoreThanLists) {
  EXPECT_FALSE(CutIntoShards(Layout(3, 2), 0).ok());
  const absl::Status refused = CutIntoShards(Layout(3, 2), 7).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(refused.message()), "7 shards of 2 kv heads x 3 layers: at most 6, and at least 1");
}

TEST(KvShard, IsAPartOfItsModel) {
  const KvLayout layout = Layout(3, 2);
  EXPECT_TRUE(CheckShard(layout, {1, 1, 2, 1}).ok());
  for (const KvShard& shard :
       std::vector<KvShard>{{0, 0, 0, 3}, {0, 2, 0, 0}, {1, 2, 0, 3}, {0, 1, 2, 2}, {-1, 1, 0, 1}}) {
    EXPECT_FALSE(CheckShard(layout, shard).ok());
  }
}

TEST(KvShard, HasTheShapeOfASmallerModel) {
  const KvLayout local = LayoutOf(Layout(6, 4), {1, 2, 3, 3});
  EXPECT_EQ(local, (KvLayout{.num_layers = 3, .num_query_heads = 8, .num_kv_heads = 2, .head_dim = 16}));
}

}  // namespace
}  // namespace winnow
