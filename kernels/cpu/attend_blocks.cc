#include "kernels/cpu/attend_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

// The state of the tiles so far: o not yet divided by l.
struct RunningState {
  float* o;  // [head_dim]
  float* m;
  float* l;
};

void Merge(const RunningState& state, const float* o, float m, float l, int head_dim) {
  const float max = std::max(*state.m, m);
  const float keep = std::exp(*state.m - max);
  const float add = std::exp(m - max);
  for (int d = 0; d < head_dim; ++d) state.o[d] = keep * state.o[d] + add * o[d];
  *state.l = keep * *state.l + add * l;
  *state.m = max;
}

}  // namespace

void RunAttendBlocks(const AttendBlocksParams& params, DecodeTileFunction tile) {
  WINNOW_CHECK(params.kv_dtype == Dtype::kBf16 || params.kv_dtype == Dtype::kF32 || params.kv_dtype == Dtype::kI8);
  const int num_queries = params.num_queries;
  const int head_dim = params.head_dim;
  if (params.num_rows == 0) {
    std::fill_n(params.o, static_cast<int64_t>(num_queries) * head_dim, 0.0f);
    std::fill_n(params.lse, num_queries, -std::numeric_limits<float>::infinity());
    return;
  }
  float* scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(params.scratch) + 63) / 64 * 64);
  float* tile_o = scratch;
  float* tile_m = tile_o + static_cast<int64_t>(num_queries) * head_dim;
  float* tile_l = tile_m + num_queries;
  float* m = tile_l + num_queries;
  float* l = m + num_queries;

  const size_t row_bytes = params.row.bytes(head_dim, params.kv_dtype);
  const char* rows[kAttentionTile + kTileLookahead];
  for (uint32_t begin = 0; begin < params.num_rows; begin += kAttentionTile) {
    const int left = static_cast<int>(params.num_rows - begin);
    const int count = std::min(kAttentionTile, left);
    const int following = std::min(kTileLookahead, left - count);
    for (int j = 0; j < count + following; ++j) {
      const uint32_t position = params.positions[begin + j];
      rows[j] = static_cast<const char*>(params.blocks[position / kBlockTokens]) + position % kBlockTokens * row_bytes;
    }
    const bool first = begin == 0;
    tile({.q = params.q,
          .group_size = num_queries,
          .head_dim = head_dim,
          .scale = params.scale,
          .score_cap = params.score_cap,
          .rows = rows,
          .kv_dtype = params.kv_dtype,
          .row = params.row,
          .num_rows = count,
          .num_following = following,
          .o = first ? params.o : tile_o,
          .m = first ? m : tile_m,
          .l = first ? l : tile_l});
    for (int h = 0; h < num_queries && !first; ++h) {
      const int64_t offset = static_cast<int64_t>(h) * head_dim;
      Merge({params.o + offset, m + h, l + h}, tile_o + offset, tile_m[h], tile_l[h], head_dim);
    }
  }
  for (int h = 0; h < num_queries; ++h) {
    float* o = params.o + static_cast<int64_t>(h) * head_dim;
    for (int d = 0; d < head_dim; ++d) o[d] /= l[h];
    params.lse[h] = m[h] + std::log(l[h]);
  }
}

}  // namespace winnow
