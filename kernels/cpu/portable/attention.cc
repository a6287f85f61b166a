#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/row_scales.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/score_cap.h"

namespace winnow::portable {
namespace {

// sum of a[i] * b[i], in 16 interleaved partial sums.
float Dot(const float* a, const void* b, Dtype dtype, int n) {
  float lanes[16] = {};
  const auto sum_lanes = [&](auto load) {
    int i = 0;
    for (; i + 16 <= n; i += 16) {
      for (int lane = 0; lane < 16; ++lane) lanes[lane] += a[i + lane] * load(i + lane);
    }
    for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * load(i);
  };
  if (dtype == Dtype::kF32) {
    sum_lanes([b](int i) { return static_cast<const float*>(b)[i]; });
  } else if (dtype == Dtype::kI8) {
    sum_lanes([b](int i) { return static_cast<float>(static_cast<const int8_t*>(b)[i]); });
  } else {
    sum_lanes([b](int i) { return Bf16ToF32(static_cast<const uint16_t*>(b)[i]); });
  }
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

// scale * q.k of a row.
float Score(const float* q, float scale, const char* row, Dtype dtype, int head_dim) {
  const float score = scale * Dot(q, row, dtype, head_dim);
  return dtype == Dtype::kI8 ? score * KeyScale(row, head_dim) : score;
}

// o += p * v
void AddScaled(float p, const void* v, Dtype dtype, int n, float* o) {
  if (dtype == Dtype::kF32) {
    for (int i = 0; i < n; ++i) o[i] += p * static_cast<const float*>(v)[i];
  } else if (dtype == Dtype::kI8) {
    for (int i = 0; i < n; ++i) o[i] += p * static_cast<float>(static_cast<const int8_t*>(v)[i]);
  } else {
    for (int i = 0; i < n; ++i) o[i] += p * Bf16ToF32(static_cast<const uint16_t*>(v)[i]);
  }
}

// o += weight * the value of a row
void AddValue(float weight, const char* row, size_t value_bytes, Dtype dtype, int head_dim, float* o) {
  if (dtype == Dtype::kI8) weight *= ValueScale(row, head_dim);
  AddScaled(weight, row + value_bytes, dtype, head_dim, o);
}

// The state of one query head between two tiles of prefill.
struct PrefillState {
  float* o;  // [head_dim] not divided
  float max;
  float sum;
};

// Goes over the rows of one tile, whose values begin `value_bytes` into a row.
void PassTile(const float* q, float scale, float score_cap, const char* const* rows, int num_rows, size_t value_bytes,
              Dtype dtype, int head_dim, PrefillState* state) {
  float scores[kPrefillKeyTile];
  for (int j = 0; j < num_rows; ++j) scores[j] = Score(q, scale, rows[j], dtype, head_dim);
  if (score_cap > 0) CapScores(scores, num_rows, score_cap);
  float tile_max = state->max;
  for (int j = 0; j < num_rows; ++j) tile_max = std::max(tile_max, scores[j]);
  const float shrink = std::exp(state->max - tile_max);
  state->max = tile_max;
  state->sum *= shrink;
  for (int d = 0; d < head_dim; ++d) state->o[d] *= shrink;
  for (int j = 0; j < num_rows; ++j) {
    const float weight = std::exp(scores[j] - tile_max);
    state->sum += weight;
    AddValue(weight, rows[j], value_bytes, dtype, head_dim, state->o);
  }
}

void PrefillQuery(const PrefillAttentionParams& p, const char* kv, int query, int head) {
  const size_t row_bytes = p.row.bytes(p.head_dim, p.kv_dtype);
  const size_t value_bytes = p.row.value_offset_bytes(p.head_dim, p.kv_dtype);
  const int64_t index = static_cast<int64_t>(query) * p.num_query_heads + head;
  float* o = p.out + index * p.head_dim;
  PrefillState state{.o = o, .max = -std::numeric_limits<float>::infinity(), .sum = 0};
  if (p.first_key == 0) {
    std::fill(o, o + p.head_dim, 0.0f);
  } else {
    const float* from = p.state + index * PrefillStateFloats(p.head_dim);
    std::copy_n(from, p.head_dim, o);
    state.max = from[p.head_dim];
    state.sum = from[p.head_dim + 1];
  }
  const int num_keys = static_cast<int>(p.first_position) + query + 1;
  const int oldest = p.window == 0 ? 0 : std::max(num_keys - static_cast<int>(p.window), 0);
  const int first_tile = std::max(static_cast<int>(p.first_key), oldest / kPrefillKeyTile * kPrefillKeyTile);
  for (int tile = first_tile; tile < num_keys; tile += kPrefillKeyTile) {
    const int begin = std::max(tile, oldest);
    const int count = std::min(tile + kPrefillKeyTile, num_keys) - begin;
    const char* rows[kPrefillKeyTile];
    for (int j = 0; j < count; ++j) rows[j] = kv + (begin + j) * row_bytes;
    PassTile(p.q + index * p.head_dim, p.scale, p.score_cap, rows, count, value_bytes, p.kv_dtype, p.head_dim, &state);
  }
  if (p.sinks != nullptr) state.sum += std::exp(p.sinks[head] - state.max);
  for (int d = 0; d < p.head_dim; ++d) o[d] /= state.sum;
}

void PrefillBlock(const PrefillAttentionParams& p, int kv_head, int begin, int end, void*) {
  const size_t row_bytes = p.row.bytes(p.head_dim, p.kv_dtype);
  const char* kv = static_cast<const char*>(p.kv) + kv_head * p.kv_head_stride * row_bytes;
  const int group_size = p.num_query_heads / p.num_kv_heads;
  for (int query = begin; query < end; ++query) {
    for (int h = 0; h < group_size; ++h) PrefillQuery(p, kv, query, kv_head * group_size + h);
  }
}

}  // namespace

void DecodeAttentionTile(const DecodeTile& tile) {
  const int head_dim = tile.head_dim;
  const size_t value_bytes = tile.value_bytes();
  for (int h = 0; h < tile.group_size; ++h) {
    const float* q = tile.q + h * head_dim;
    float scores[kAttentionTile];
    for (int j = 0; j < tile.num_rows; ++j) scores[j] = Score(q, tile.scale, tile.rows[j], tile.kv_dtype, head_dim);
    if (tile.score_cap > 0) CapScores(scores, tile.num_rows, tile.score_cap);
    float max = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < tile.num_rows; ++j) max = std::max(max, scores[j]);
    float* o = tile.o + h * head_dim;
    std::fill(o, o + head_dim, 0.0f);
    float sum = 0;
    for (int j = 0; j < tile.num_rows; ++j) {
      const float weight = std::exp(scores[j] - max);
      sum += weight;
      AddValue(weight, tile.rows[j], value_bytes, tile.kv_dtype, head_dim, o);
    }
    tile.m[h] = max;
    tile.l[h] = sum;
  }
}

void PrefixAttention(const PrefixAttentionParams& p) {
  const size_t row_bytes = p.row.bytes(p.head_dim, p.kv_dtype);
  const size_t value_bytes = p.row.value_offset_bytes(p.head_dim, p.kv_dtype);
  const int state_floats = PrefillStateFloats(p.head_dim);
  for (uint32_t begin = p.first_key; begin < p.end_key; begin += kPrefillKeyTile) {
    const char* rows[kPrefillKeyTile];
    for (uint32_t j = 0; j < kPrefillKeyTile; ++j) {
      const uint32_t position = begin + j;
      rows[j] = static_cast<const char*>(p.blocks[position / kBlockTokens]) + position % kBlockTokens * row_bytes;
    }
    for (int row = 0; row < p.num_queries * p.group_size; ++row) {
      const int query = row / p.group_size, head = row % p.group_size;
      float* o = p.state + query * p.state_stride + static_cast<int64_t>(head) * state_floats;
      PrefillState state{.o = o, .max = o[p.head_dim], .sum = o[p.head_dim + 1]};
      if (begin == 0) {
        std::fill_n(o, p.head_dim, 0.0f);
        state.max = -std::numeric_limits<float>::infinity();
        state.sum = 0;
      }
      PassTile(p.q + query * p.q_stride + static_cast<int64_t>(head) * p.head_dim, p.scale, p.score_cap, rows,
               kPrefillKeyTile, value_bytes, p.kv_dtype, p.head_dim, &state);
      o[p.head_dim] = state.max;
      o[p.head_dim + 1] = state.sum;
    }
  }
}

const PrefillMicro kPrefill = {
    .block_queries = [](const PrefillAttentionParams&) { return 16; },
    .scratch_bytes = [](const PrefillAttentionParams&) { return size_t{0}; },
    .block = PrefillBlock,
};

}  // namespace winnow::portable
