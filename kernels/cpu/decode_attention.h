#pragma once
#include <cstdint>

#include "kernels/kernel_table.h"

// Attention over slot lists: the driver cuts each list into tiles, spreads (row, kv head, tile) over the team, and
// whoever finishes the last tile of a list merges its partial states in order.

namespace winnow {

// One tile of one list: o[h] = sum_j exp(s_hj - m_h) v_j, m[h] = max_j s_hj, l[h] = sum_j exp(s_hj - m_h), where
// s_hj = scale * q[h] . k_j.
struct DecodeTile {
  const float* q = nullptr;  // [group_size, head_dim]
  int group_size = 0;
  int head_dim = 0;
  float scale = 0;
  const void* slot_pool = nullptr;
  Dtype kv_dtype = Dtype::kBf16;
  const uint32_t* slots = nullptr;
  int num_slots = 0;      // 1 .. kAttentionTile
  int num_following = 0;  // slots of the list after these: worth a prefetch near the end
  float* o = nullptr;     // [group_size, head_dim]
  float* m = nullptr;     // [group_size]
  float* l = nullptr;     // [group_size]
};

using DecodeTileFunction = void (*)(const DecodeTile& tile);

void RunDecodeAttention(Executor& executor, const DecodeAttentionParams& params, DecodeTileFunction tile);

}  // namespace winnow
