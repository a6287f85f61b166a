#pragma once
#include <cstdint>

#include "kernels/kernel_table.h"

// Attention over slot lists: the driver cuts each list into tiles, spreads (list, tile) over the team, and whoever
// finishes the last tile of a list merges its partial states in order.

namespace winnow {

// Rows of a list behind a tile whose addresses the tile is told, so that it can prefetch them near its end.
inline constexpr int kTileLookahead = 64;

// One tile of one list: o[h] = sum_j exp(s_hj - m_h) v_j, m[h] = max_j s_hj, l[h] = sum_j exp(s_hj - m_h), where
// s_hj = scale * q[h] . k_j, or capped as kernels/params/attention.h says. What a head gets does not depend on the
// others of the group.
struct DecodeTile {
  const float* q = nullptr;  // [group_size, head_dim]
  int group_size = 0;        // query heads that read the list
  int head_dim = 0;
  float scale = 0;
  float score_cap = 0;
  const char* const* rows = nullptr;  // [num_rows + num_following] -> a row of kv_dtype
  Dtype kv_dtype = Dtype::kBf16;
  RowLayout row = {};
  int num_rows = 0;       // 1 .. kAttentionTile
  int num_following = 0;  // 0 .. kTileLookahead: the next of the list
  float* o = nullptr;     // [group_size, head_dim]
  float* m = nullptr;     // [group_size]
  float* l = nullptr;     // [group_size]

  size_t value_bytes() const { return row.value_offset_bytes(head_dim, kv_dtype); }  // into a row
};

using DecodeTileFunction = void (*)(const DecodeTile& tile);

void RunDecodeAttention(Executor& executor, const DecodeAttentionParams& params, DecodeTileFunction tile);

}  // namespace winnow
