#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace winnow {

inline constexpr int kBlockTokens = 32;  // consecutive positions of one (layer, kv head) in a block of the cache rank
inline constexpr int kSlotPageTokens = 64;  // slots in a slot page of an inference rank

// Some query heads of a head group: bit i is the group's i-th.
using QueryHeadMask = uint16_t;
inline constexpr int kMaxMaskedHeads = 16;
// All of a group of 1 to kMaxMaskedHeads.
constexpr QueryHeadMask AllQueryHeads(int group_size) {
  return static_cast<QueryHeadMask>((1u << group_size) - 1);
}

// Shape of one model's KV; all byte arithmetic of rows lives here.
//
// A row is one token's K and V of one (layer, kv head), side by side: 2 * head_dim elements. K is stored after RoPE.
struct KvLayout {
  int num_layers = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  Dtype dtype = Dtype::kBf16;

  // A list is one (layer, kv head): layer * num_kv_heads + kv_head.
  size_t num_lists() const { return static_cast<size_t>(num_layers) * num_kv_heads; }
  size_t list(int layer, int kv_head) const { return static_cast<size_t>(layer) * num_kv_heads + kv_head; }
  int group_size() const { return num_query_heads / num_kv_heads; }
  size_t row_bytes() const { return 2 * static_cast<size_t>(head_dim) * DtypeBytes(dtype); }
  size_t block_bytes() const { return kBlockTokens * row_bytes(); }
  // One token in all layers and kv heads.
  size_t token_bytes() const { return row_bytes() * num_layers * num_kv_heads; }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

}  // namespace winnow
