#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/scalar.h"

namespace winnow::portable {
namespace {

// Keys of one softmax update of prefill, aligned to absolute positions.
constexpr int kPrefillKeyTile = 128;

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
  } else {
    sum_lanes([b](int i) { return Bf16ToF32(static_cast<const uint16_t*>(b)[i]); });
  }
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

// o += p * v
void AddScaled(float p, const void* v, Dtype dtype, int n, float* o) {
  if (dtype == Dtype::kF32) {
    for (int i = 0; i < n; ++i) o[i] += p * static_cast<const float*>(v)[i];
  } else {
    for (int i = 0; i < n; ++i) o[i] += p * Bf16ToF32(static_cast<const uint16_t*>(v)[i]);
  }
}

void PrefillQuery(const PrefillAttentionParams& p, const char* kv, int query, int head) {
  const size_t row_bytes = 2 * static_cast<size_t>(p.head_dim) * DtypeBytes(p.kv_dtype);
  const int64_t offset = (static_cast<int64_t>(query) * p.num_query_heads + head) * p.head_dim;
  const float* q = p.q + offset;
  float* o = p.out + offset;
  std::fill(o, o + p.head_dim, 0.0f);
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  const int num_keys = static_cast<int>(p.first_position) + query + 1;
  for (int begin = 0; begin < num_keys; begin += kPrefillKeyTile) {
    const int end = std::min(begin + kPrefillKeyTile, num_keys);
    float scores[kPrefillKeyTile];
    float tile_max = max;
    for (int j = begin; j < end; ++j) {
      scores[j - begin] = p.scale * Dot(q, kv + j * row_bytes, p.kv_dtype, p.head_dim);
      tile_max = std::max(tile_max, scores[j - begin]);
    }
    const float shrink = std::exp(max - tile_max);
    max = tile_max;
    sum *= shrink;
    for (int d = 0; d < p.head_dim; ++d) o[d] *= shrink;
    for (int j = begin; j < end; ++j) {
      const float weight = std::exp(scores[j - begin] - max);
      sum += weight;
      AddScaled(weight, kv + j * row_bytes + row_bytes / 2, p.kv_dtype, p.head_dim, o);
    }
  }
  for (int d = 0; d < p.head_dim; ++d) o[d] /= sum;
}

void PrefillBlock(const PrefillAttentionParams& p, int kv_head, int begin, int end, void*) {
  const size_t row_bytes = 2 * static_cast<size_t>(p.head_dim) * DtypeBytes(p.kv_dtype);
  const char* kv = static_cast<const char*>(p.kv) + kv_head * p.kv_head_stride * row_bytes;
  const int group_size = p.num_query_heads / p.num_kv_heads;
  for (int query = begin; query < end; ++query) {
    for (int h = 0; h < group_size; ++h) PrefillQuery(p, kv, query, kv_head * group_size + h);
  }
}

}  // namespace

void DecodeAttentionTile(const DecodeTile& tile) {
  const int head_dim = tile.head_dim;
  const size_t row_bytes = 2 * static_cast<size_t>(head_dim) * DtypeBytes(tile.kv_dtype);
  for (int h = 0; h < tile.group_size; ++h) {
    const float* q = tile.q + h * head_dim;
    float scores[kAttentionTile];
    float max = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < tile.num_rows; ++j) {
      scores[j] = tile.scale * Dot(q, tile.rows[j], tile.kv_dtype, head_dim);
      max = std::max(max, scores[j]);
    }
    float* o = tile.o + h * head_dim;
    std::fill(o, o + head_dim, 0.0f);
    float sum = 0;
    for (int j = 0; j < tile.num_rows; ++j) {
      const float weight = std::exp(scores[j] - max);
      sum += weight;
      AddScaled(weight, tile.rows[j] + row_bytes / 2, tile.kv_dtype, head_dim, o);
    }
    tile.m[h] = max;
    tile.l[h] = sum;
  }
}

const PrefillMicro kPrefill = {
    .block_queries = [](const PrefillAttentionParams&) { return 16; },
    .scratch_bytes = [](const PrefillAttentionParams&) { return size_t{0}; },
    .block = PrefillBlock,
};

}  // namespace winnow::portable
