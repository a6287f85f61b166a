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

// What a row holds, in elements: the key of one token of one (layer, kv head), stored after RoPE, then its value, then
// its index key. All of them that there are lie side by side, and all offsets and sizes of rows come from here.
//
// With latent attention the key is the value, too, and is stored once. A model that brings an indexer gives each token
// an index key, which its own rule scores in the place of the key.
//
// A row of int8 has two f32 behind its elements, the scale of its key and that of its value: an element is its code
// times the scale, which is the largest magnitude of the key, or of the value, over 127. So a row's bits depend on that
// row alone. (Slots of GPUs have scales in memory of their own: DecodeSlotShape.)
struct RowLayout {
  bool value_is_key = false;
  int index_dim = 0;  // of the index key; 0: there is none

  constexpr size_t elements(int head_dim) const { return index_offset(head_dim) + static_cast<size_t>(index_dim); }
  constexpr size_t value_offset(int head_dim) const { return value_is_key ? 0 : static_cast<size_t>(head_dim); }
  constexpr size_t index_offset(int head_dim) const { return (value_is_key ? 1 : 2) * static_cast<size_t>(head_dim); }

  constexpr size_t bytes(int head_dim, Dtype dtype) const {
    return scales_offset_bytes(head_dim, dtype) + (dtype == Dtype::kI8 ? 2 * sizeof(float) : 0);
  }
  constexpr size_t value_offset_bytes(int head_dim, Dtype dtype) const {
    return value_offset(head_dim) * DtypeBytes(dtype);
  }
  // Of the key's scale; the value's comes after it.
  constexpr size_t scales_offset_bytes(int head_dim, Dtype dtype) const {
    return elements(head_dim) * DtypeBytes(dtype);
  }

  friend bool operator==(const RowLayout&, const RowLayout&) = default;
};

// Shape of one model's KV; all byte arithmetic of rows lives here.
struct KvLayout {
  int num_layers = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  Dtype dtype = Dtype::kBf16;
  RowLayout row = {};
  int num_index_heads = 0;  // of the model's indexer; 0: it has none

  // A list is one (layer, kv head): layer * num_kv_heads + kv_head.
  size_t num_lists() const { return static_cast<size_t>(num_layers) * num_kv_heads; }
  size_t list(int layer, int kv_head) const { return static_cast<size_t>(layer) * num_kv_heads + kv_head; }
  int group_size() const { return num_query_heads / num_kv_heads; }
  bool has_indexer() const { return num_index_heads > 0; }
  // What the indexer scores a position's keys with: a query of every index head, then a weight of each.
  size_t index_query_floats() const {
    return static_cast<size_t>(num_index_heads) * (static_cast<size_t>(row.index_dim) + 1);
  }
  size_t row_bytes() const { return row.bytes(head_dim, dtype); }
  size_t block_bytes() const { return kBlockTokens * row_bytes(); }
  // One token in all layers and kv heads.
  size_t token_bytes() const { return row_bytes() * num_layers * num_kv_heads; }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

}  // namespace winnow
