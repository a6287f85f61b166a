#pragma once
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"

namespace winnow {

// The part of a sequence's KV that one cache rank holds: kv heads [first_kv_head, first_kv_head + num_kv_heads) of
// layers [first_layer, first_layer + num_layers), with the query heads of these groups. To that cache rank it is a
// sequence of fewer lists: what it stores, selects and caches goes by LayoutOf(layout, shard), and heads and layers
// count from 0 there.
struct KvShard {
  int first_kv_head = 0;
  int num_kv_heads = 0;
  int first_layer = 0;
  int num_layers = 0;

  bool HasLayer(int layer) const { return layer >= first_layer && layer < first_layer + num_layers; }
  bool HasHead(int kv_head) const { return kv_head >= first_kv_head && kv_head < first_kv_head + num_kv_heads; }
  int last_layer() const { return first_layer + num_layers - 1; }
  size_t num_lists() const { return static_cast<size_t>(num_layers) * num_kv_heads; }

  friend bool operator==(const KvShard&, const KvShard&) = default;
};

inline KvShard WholeModel(const KvLayout& layout) {
  return {.first_kv_head = 0, .num_kv_heads = layout.num_kv_heads, .first_layer = 0, .num_layers = layout.num_layers};
}

// The shape of a shard: that of a model with its layers and heads alone.
inline KvLayout LayoutOf(const KvLayout& layout, const KvShard& shard) {
  KvLayout local = layout;
  local.num_layers = shard.num_layers;
  local.num_query_heads = shard.num_kv_heads * layout.group_size();
  local.num_kv_heads = shard.num_kv_heads;
  return local;
}

// INVALID_ARGUMENT when the shard is empty or exceeds the model.
absl::Status CheckShard(const KvLayout& layout, const KvShard& shard);

// Cuts a model's KV into `num_shards` parts: by kv head first, as each head is selected for by itself, and by ranges of
// layers where there are more parts than kv heads. Parts differ by one head, or one layer, at most. Who opens a
// sequence and who attaches to it cut alike. INVALID_ARGUMENT for 0, and for more shards than kv heads x layers.
absl::StatusOr<std::vector<KvShard>> CutIntoShards(const KvLayout& layout, int num_shards);

}  // namespace winnow
