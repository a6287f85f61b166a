#include "common/selection/shard_spec.h"

#include <algorithm>

namespace winnow {

SelectionSpec SpecOfShard(const SelectionSpec& spec, const KvLayout& layout, const KvShard& shard) {
  SelectionSpec cut = spec;
  if (spec.head_budgets.empty()) return cut;
  cut.head_budgets.clear();
  for (int layer = shard.first_layer; layer <= shard.last_layer(); ++layer) {
    const auto first = spec.head_budgets.begin() + static_cast<ptrdiff_t>(layout.list(layer, shard.first_kv_head));
    cut.head_budgets.insert(cut.head_budgets.end(), first, first + shard.num_kv_heads);
  }
  return cut;
}

v1::KvShard ToProto(const KvShard& shard) {
  v1::KvShard proto;
  proto.set_first_kv_head(static_cast<uint32_t>(shard.first_kv_head));
  proto.set_num_kv_heads(static_cast<uint32_t>(shard.num_kv_heads));
  proto.set_first_layer(static_cast<uint32_t>(shard.first_layer));
  proto.set_num_layers(static_cast<uint32_t>(shard.num_layers));
  return proto;
}

KvShard FromProto(const v1::KvShard& proto) {
  // No model has so many of anything.
  const auto number = [](uint32_t n) { return static_cast<int>(std::min<uint32_t>(n, UINT16_MAX)); };
  return {.first_kv_head = number(proto.first_kv_head()),
          .num_kv_heads = number(proto.num_kv_heads()),
          .first_layer = number(proto.first_layer()),
          .num_layers = number(proto.num_layers())};
}

}  // namespace winnow
