#include <algorithm>

#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/panel.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/row_scales.h"
#include "kernels/cpu/score_cap.h"

// Flash attention in f32: a block's query rows (queries x heads of the group) pass over key tiles of fixed absolute
// position. A tile is widened once to panels that the matmul's register tile reads: K transposed, V as it is.

namespace winnow::avx512 {
namespace {

constexpr int kKeyTile = kPrefillKeyTile;
constexpr int kStripRows = 48;   // query rows between scores and values: 24 KiB of scores stay in L1
constexpr int kBlockRows = 256;  // query rows of a block, about; spreads the packing of a tile
constexpr int kMaxHeadDim = 1024;
constexpr float kLog2E = 1.44269504f;

int RoundUp(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

int GroupSize(const PrefillAttentionParams& p) {
  return p.num_query_heads / p.num_kv_heads;
}

int BlockQueries(const PrefillAttentionParams& p) {
  return std::max(16, kBlockRows / GroupSize(p));
}

bool IsSupported(int head_dim) {
  return head_dim % 16 == 0 && head_dim <= kMaxHeadDim;
}

// One worker's buffers, in floats and in this order, each a multiple of 64 bytes.
struct Scratch {
  float* q;       // [rows, head_dim], times scale * log2(e)
  float* o;       // [rows, head_dim]
  float* max;     // [rows]
  float* sum;     // [rows]
  float* keys;    // [kKeyTile/64][head_dim][64]
  float* values;  // [kKeyTile, head_dim]
  float* scores;  // [kStripRows, kKeyTile]

  static size_t Floats(int most_rows, int head_dim) {
    const size_t rows = RoundUp(most_rows, 16);
    return 2 * rows * head_dim + 2 * rows + 2 * kKeyTile * head_dim + kStripRows * kKeyTile;
  }
  Scratch(int most_rows, int head_dim, void* memory) {
    const size_t rows = RoundUp(most_rows, 16);
    q = static_cast<float*>(memory);
    o = q + rows * head_dim;
    max = o + rows * head_dim;
    sum = max + rows;
    keys = sum + rows;
    values = keys + kKeyTile * head_dim;
    scores = values + kKeyTile * head_dim;
  }
};
// At most 64 bytes of it go into alignment.
static_assert(PrefixAttentionScratchBytes(64) ==
              (2 * kMaxPrefixRows * 65 + 2 * kKeyTile * 64 + kStripRows * kKeyTile) * sizeof(float) + 64);

// Where a tile's rows lie: runs of kRun rows side by side.
constexpr int kRun = 16;
struct TileRows {
  const char* runs[kKeyTile / kRun];
  size_t row_bytes;
  size_t value_bytes;  // into a row
  int count;           // what lies beyond is not read

  const char* row(int key) const { return runs[key / kRun] + key % kRun * row_bytes; }
};

// The tile's keys to panels of 64; keys beyond the tile's count become zero.
template <Dtype kDtype>
void PackKeys(const TileRows& tile, int head_dim, float* out) {
  float scales[kKeyTile] = {};
  for (int key = 0; kDtype == Dtype::kI8 && key < tile.count && key < kKeyTile; ++key) {
    scales[key] = KeyScale(tile.row(key), head_dim);
  }
  for (int key = 0; key < kKeyTile; key += 16) {
    for (int d = 0; d < head_dim; d += 16) {
      __m512 block[16];
      for (int i = 0; i < 16; ++i) {
        block[i] = key + i < tile.count ? Load16<kDtype>(tile.row(key + i), d) : _mm512_setzero_ps();
        if constexpr (kDtype == Dtype::kI8) block[i] = _mm512_mul_ps(block[i], _mm512_set1_ps(scales[key + i]));
      }
      Transpose16(block);
      float* to = out + (key / 64 * head_dim + d) * 64 + key % 64;
      for (int i = 0; i < 16; ++i) _mm512_store_ps(to + i * 64, block[i]);
    }
  }
}

template <Dtype kDtype>
void PackValues(const TileRows& tile, int head_dim, float* out) {
  for (int key = 0; key < kKeyTile; ++key) {
    const float scale = kDtype == Dtype::kI8 && key < tile.count ? ValueScale(tile.row(key), head_dim) : 1;
    for (int d = 0; d < head_dim; d += 16) {
      __m512 value = key < tile.count ? Load16<kDtype>(tile.row(key) + tile.value_bytes, d) : _mm512_setzero_ps();
      if constexpr (kDtype == Dtype::kI8) value = _mm512_mul_ps(value, _mm512_set1_ps(scale));
      _mm512_store_ps(out + key * head_dim + d, value);
    }
  }
}

// Turns a row of scores into weights relative to its new maximum; keys below first_key and at and above num_keys get 0.
// Scales o and sum to match.
inline void SoftmaxRow(float* scores, int first_key, int num_keys, float& row_max, float& row_sum, float* o,
                       int head_dim) {
  constexpr int kVectors = kKeyTile / 16;
  if (first_key >= std::min(num_keys, kKeyTile)) {
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(scores + 16 * v, _mm512_setzero_ps());
    return;
  }
  __m512 s[kVectors];
  for (int v = 0; v < kVectors; ++v) s[v] = _mm512_load_ps(scores + 16 * v);
  if (num_keys < kKeyTile) {
    for (int v = 0; v < kVectors; ++v) {
      s[v] = _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), FirstLanes(num_keys - 16 * v), s[v]);
    }
  }
  if (first_key > 0) {
    for (int v = 0; v < kVectors; ++v) {
      s[v] = _mm512_mask_mov_ps(s[v], FirstLanes(first_key - 16 * v), _mm512_set1_ps(-__builtin_inff()));
    }
  }
  const __m512 low = _mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3]));
  const __m512 high = _mm512_max_ps(_mm512_max_ps(s[4], s[5]), _mm512_max_ps(s[6], s[7]));
  const float max = std::max(row_max, _mm512_reduce_max_ps(_mm512_max_ps(low, high)));
  if (max != row_max) {
    const __m512 shrink = Exp2(_mm512_set1_ps(row_max - max));
    row_max = max;
    row_sum *= _mm512_cvtss_f32(shrink);
    for (int d = 0; d < head_dim; d += 16) _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), shrink));
  }
  const __m512 offset = _mm512_set1_ps(max);
  for (int v = 0; v < kVectors; ++v) {
    s[v] = Exp2(_mm512_sub_ps(s[v], offset));
    _mm512_store_ps(scores + 16 * v, s[v]);
  }
  const __m512 sum_low = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
  const __m512 sum_high = _mm512_add_ps(_mm512_add_ps(s[4], s[5]), _mm512_add_ps(s[6], s[7]));
  row_sum += _mm512_reduce_add_ps(_mm512_add_ps(sum_low, sum_high));
}

// o += weights x values, for all of head_dim.
void AddValues(const float* weights, int num_rows, const float* values, int head_dim, float* o) {
  int d = 0;
  for (; d + 64 <= head_dim; d += 64) {
    PanelRows<4, Dtype::kF32>(weights, kKeyTile, num_rows, values + d, head_dim, kKeyTile, o + d, head_dim, true);
  }
  for (; d < head_dim; d += 16) {
    PanelRows<1, Dtype::kF32>(weights, kKeyTile, num_rows, values + d, head_dim, kKeyTile, o + d, head_dim, true);
  }
}

// Query row `row` of a block: its queries scaled, its state empty, or as `state` [head_dim + 2] says.
void BeginRow(const float* q, const float* state, float scale, int head_dim, int row, const Scratch& scratch) {
  const __m512 factor = _mm512_set1_ps(scale * kLog2E);
  for (int d = 0; d < head_dim; d += 16) {
    _mm512_store_ps(scratch.q + row * head_dim + d, _mm512_mul_ps(_mm512_loadu_ps(q + d), factor));
    _mm512_store_ps(scratch.o + row * head_dim + d,
                    state == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(state + d));
  }
  scratch.max[row] = state == nullptr ? -__builtin_inff() : state[head_dim];
  scratch.sum[row] = state == nullptr ? 0 : state[head_dim + 1];
}

// A block's query rows go over one tile. Row r = query * group_size + head attends to the first `visible` + r /
// group_size of its keys, and of these to the last `window`, 0: to all.
struct TilePass {
  int num_rows, group_size;
  int visible, window;
  int head_dim;
  float score_cap;  // 0: none
};

template <Dtype kDtype>
void PassTile(const TileRows& tile, const TilePass& pass, const Scratch& scratch) {
  const int head_dim = pass.head_dim;
  PackKeys<kDtype>(tile, head_dim, scratch.keys);
  PackValues<kDtype>(tile, head_dim, scratch.values);
  for (int strip = 0; strip < pass.num_rows; strip += kStripRows) {
    const int strip_rows = std::min(kStripRows, pass.num_rows - strip);
    for (int panel = 0; panel < kKeyTile / 64; ++panel) {
      PanelRows<4, Dtype::kF32>(scratch.q + strip * head_dim, head_dim, strip_rows,
                                scratch.keys + panel * head_dim * 64, 64, head_dim, scratch.scores + panel * 64,
                                kKeyTile, false);
    }
    if (pass.score_cap > 0) CapScores(scratch.scores, strip_rows * kKeyTile, pass.score_cap * kLog2E);
    for (int r = 0; r < strip_rows; ++r) {
      const int row = strip + r;
      const int num_keys = pass.visible + row / pass.group_size;
      const int first_key = pass.window == 0 ? 0 : std::max(num_keys - pass.window, 0);
      SoftmaxRow(scratch.scores + r * kKeyTile, first_key, num_keys, scratch.max[row], scratch.sum[row],
                 scratch.o + row * head_dim, head_dim);
    }
    AddValues(scratch.scores, strip_rows, scratch.values, head_dim, scratch.o + strip * head_dim);
  }
}

void PassTile(Dtype dtype, const TileRows& tile, const TilePass& pass, const Scratch& scratch) {
  const auto of_dtype = dtype == Dtype::kBf16 ? PassTile<Dtype::kBf16>
                        : dtype == Dtype::kI8 ? PassTile<Dtype::kI8>
                                              : PassTile<Dtype::kF32>;
  of_dtype(tile, pass, scratch);
}

void RunBlock(const PrefillAttentionParams& p, int kv_head, int begin, int end, void* memory) {
  const int head_dim = p.head_dim;
  const int group_size = GroupSize(p);
  const Scratch scratch(BlockQueries(p) * group_size, head_dim, memory);
  const int num_rows = (end - begin) * group_size;  // row = query * group_size + head of the group
  const size_t row_bytes = p.row.bytes(head_dim, p.kv_dtype);
  const size_t value_bytes = p.row.value_offset_bytes(head_dim, p.kv_dtype);
  const char* kv = static_cast<const char*>(p.kv) + kv_head * p.kv_head_stride * row_bytes;
  const auto index = [&](int row) {
    const int64_t query = begin + row / group_size;
    return query * p.num_query_heads + kv_head * group_size + row % group_size;
  };
  for (int row = 0; row < num_rows; ++row) {
    const float* state = p.first_key == 0 ? nullptr : p.state + index(row) * PrefillStateFloats(head_dim);
    BeginRow(p.q + index(row) * head_dim, state, p.scale, head_dim, row, scratch);
  }

  const int first_position = static_cast<int>(p.first_position);
  const int num_keys = first_position + end;  // of the block's last query
  const int window = static_cast<int>(p.window);
  // The first query's window begins first. Those of later ones may leave out whole tiles, which change nothing then.
  const int oldest = window == 0 ? 0 : std::max(first_position + begin + 1 - window, 0);
  for (int tile = std::max(static_cast<int>(p.first_key), oldest / kKeyTile * kKeyTile); tile < num_keys;
       tile += kKeyTile) {
    TileRows rows{
        .runs = {}, .row_bytes = row_bytes, .value_bytes = value_bytes, .count = std::min(kKeyTile, num_keys - tile)};
    for (int run = 0; run < kKeyTile / kRun; ++run) rows.runs[run] = kv + (tile + run * kRun) * row_bytes;
    PassTile(p.kv_dtype, rows,
             {.num_rows = num_rows,
              .group_size = group_size,
              .visible = first_position + begin + 1 - tile,
              .window = window,
              .head_dim = head_dim,
              .score_cap = p.score_cap},
             scratch);
  }

  for (int row = 0; row < num_rows; ++row) {
    float sum = scratch.sum[row];
    if (p.sinks != nullptr) {
      const float sink = p.sinks[kv_head * group_size + row % group_size] * kLog2E;
      sum += _mm512_cvtss_f32(Exp2(_mm512_set1_ps(sink - scratch.max[row])));
    }
    const __m512 inverse = _mm512_set1_ps(1 / sum);
    float* out = p.out + index(row) * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
      _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_load_ps(scratch.o + row * head_dim + d), inverse));
    }
  }
}

int PrefillBlockQueries(const PrefillAttentionParams& p) {
  return IsSupported(p.head_dim) ? BlockQueries(p) : portable::kPrefill.block_queries(p);
}

size_t PrefillScratchBytes(const PrefillAttentionParams& p) {
  return IsSupported(p.head_dim) ? Scratch::Floats(BlockQueries(p) * GroupSize(p), p.head_dim) * sizeof(float)
                                 : portable::kPrefill.scratch_bytes(p);
}

void PrefillBlock(const PrefillAttentionParams& p, int kv_head, int begin, int end, void* memory) {
  if (!IsSupported(p.head_dim)) return portable::kPrefill.block(p, kv_head, begin, end, memory);
  RunBlock(p, kv_head, begin, end, memory);
}

}  // namespace

void PrefixAttention(const PrefixAttentionParams& p) {
  if (!IsSupported(p.head_dim)) return portable::PrefixAttention(p);
  const int head_dim = p.head_dim;
  const int num_rows = p.num_queries * p.group_size;
  const size_t row_bytes = p.row.bytes(head_dim, p.kv_dtype);
  const size_t value_bytes = p.row.value_offset_bytes(head_dim, p.kv_dtype);
  const Scratch scratch(kMaxPrefixRows, head_dim,
                        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p.scratch) + 63) / 64 * 64));
  const auto state_of = [&](int row) {
    return p.state + row / p.group_size * p.state_stride +
           static_cast<int64_t>(row % p.group_size) * PrefillStateFloats(head_dim);
  };
  for (int row = 0; row < num_rows; ++row) {
    const float* q = p.q + row / p.group_size * p.q_stride + static_cast<int64_t>(row % p.group_size) * head_dim;
    BeginRow(q, p.first_key == 0 ? nullptr : state_of(row), p.scale, head_dim, row, scratch);
  }
  for (uint32_t tile = p.first_key; tile < p.end_key; tile += kKeyTile) {
    TileRows rows{.runs = {}, .row_bytes = row_bytes, .value_bytes = value_bytes, .count = kKeyTile};
    for (uint32_t run = 0; run < kKeyTile / kRun; ++run) {
      const uint32_t position = tile + run * kRun;
      rows.runs[run] =
          static_cast<const char*>(p.blocks[position / kBlockTokens]) + position % kBlockTokens * row_bytes;
    }
    PassTile(p.kv_dtype, rows,
             {.num_rows = num_rows,
              .group_size = p.group_size,
              .visible = kKeyTile,
              .window = 0,
              .head_dim = head_dim,
              .score_cap = p.score_cap},
             scratch);
  }
  for (int row = 0; row < num_rows; ++row) {
    float* state = state_of(row);
    for (int d = 0; d < head_dim; d += 16) {
      _mm512_storeu_ps(state + d, _mm512_load_ps(scratch.o + row * head_dim + d));
    }
    state[head_dim] = scratch.max[row];
    state[head_dim + 1] = scratch.sum[row];
  }
}

const PrefillMicro kPrefill = {
    .block_queries = PrefillBlockQueries,
    .scratch_bytes = PrefillScratchBytes,
    .block = PrefillBlock,
};

}  // namespace winnow::avx512
