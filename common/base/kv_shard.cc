#include "common/base/kv_shard.h"

#include <algorithm>

namespace winnow {

absl::Status CheckShard(const KvLayout& layout, const KvShard& shard) {
  const bool has_heads = shard.first_kv_head >= 0 && shard.num_kv_heads > 0 &&
                         shard.num_kv_heads <= layout.num_kv_heads - shard.first_kv_head;
  const bool has_layers =
      shard.first_layer >= 0 && shard.num_layers > 0 && shard.num_layers <= layout.num_layers - shard.first_layer;
  if (has_heads && has_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a shard of ", shard.num_kv_heads, " kv heads from ",
                                                 shard.first_kv_head, " on and ", shard.num_layers, " layers from ",
                                                 shard.first_layer, " on, of a model of ", layout.num_kv_heads,
                                                 " kv heads and ", layout.num_layers, " layers"));
}

absl::StatusOr<std::vector<KvShard>> CutIntoShards(const KvLayout& layout, int num_shards) {
  if (num_shards < 1 || static_cast<size_t>(num_shards) > layout.num_lists()) {
    return absl::InvalidArgumentError(absl::StrCat(num_shards, " shards of ", layout.num_kv_heads, " kv heads x ",
                                                   layout.num_layers, " layers: at most ", layout.num_lists(),
                                                   ", and at least 1"));
  }
  // Part i of n of a range: the first ones are longer by one where n does not divide it.
  const auto begin_of = [](int i, int n, int length) { return i * (length / n) + std::min(i, length % n); };
  const int head_parts = std::min(num_shards, layout.num_kv_heads);
  std::vector<KvShard> shards;
  for (int part = 0; part < head_parts; ++part) {
    const int first_head = begin_of(part, head_parts, layout.num_kv_heads);
    const int end_head = begin_of(part + 1, head_parts, layout.num_kv_heads);
    const int layer_parts = begin_of(part + 1, head_parts, num_shards) - begin_of(part, head_parts, num_shards);
    for (int range = 0; range < layer_parts; ++range) {
      const int first_layer = begin_of(range, layer_parts, layout.num_layers);
      const int end_layer = begin_of(range + 1, layer_parts, layout.num_layers);
      shards.push_back({.first_kv_head = first_head,
                        .num_kv_heads = end_head - first_head,
                        .first_layer = first_layer,
                        .num_layers = end_layer - first_layer});
    }
  }
  return shards;
}

}  // namespace winnow
