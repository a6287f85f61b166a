#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/vector.h"
#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/row_scales.h"
#include "kernels/cpu/score_cap.h"

// Units of 16 elements as two vectors, even and odd elements for bf16: see avx512/decode_attention.cc. One head at a
// time; the tile stays in cache for the others of the group.

namespace winnow::avx2 {
namespace {

constexpr int kUnit = 16;
constexpr int kMaxHeadDim = 1024;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

template <Dtype kDtype>
inline void LoadUnit(const char* row, int unit, __m256& a, __m256& b) {
  if constexpr (kDtype == Dtype::kF32) {
    a = _mm256_loadu_ps(reinterpret_cast<const float*>(row) + unit * kUnit);
    b = _mm256_loadu_ps(reinterpret_cast<const float*>(row) + unit * kUnit + 8);
  } else if constexpr (kDtype == Dtype::kI8) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + unit * kUnit));
    a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
  } else {
    const __m256i pairs = LoadPairs(reinterpret_cast<const uint16_t*>(row) + unit * kUnit);
    a = EvenOf(pairs);
    b = OddOf(pairs);
  }
}

// Element i of a unit's two vectors is element InOrder(i) of the row.
template <Dtype kDtype>
constexpr int InOrder(int i) {
  return kDtype != Dtype::kBf16 ? i : i < 8 ? 2 * i : 2 * (i - 8) + 1;
}

template <Dtype kDtype>
void RunHead(const DecodeTile& tile, int head) {
  const int num_units = tile.head_dim / kUnit;
  const size_t value_bytes = tile.value_bytes();
  const size_t read_bytes = tile.row.bytes(tile.head_dim, kDtype);
  const auto row = [&](int j) { return tile.rows[j < tile.num_rows ? j : tile.num_rows - 1]; };

  alignas(32) float q[kMaxHeadDim];
  for (int d = 0; d < tile.head_dim; ++d) {
    const int from = d / kUnit * kUnit + InOrder<kDtype>(d % kUnit);
    q[d] = tile.q[static_cast<int64_t>(head) * tile.head_dim + from] * (tile.scale * kLog2E);
  }

  alignas(32) float weights[kAttentionTile];
  __m256 max = _mm256_set1_ps(-__builtin_inff());
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int j = 0; j < tile.num_rows; j += 8) {
    __m256 sum[8];
    for (int i = 0; i < 8; ++i) {
      const char* key = row(j + i);
      for (size_t byte = 0; byte < read_bytes; byte += 64) _mm_prefetch(row(j + i + 16) + byte, _MM_HINT_T0);
      __m256 even = _mm256_setzero_ps();
      __m256 odd = _mm256_setzero_ps();
      for (int u = 0; u < num_units; ++u) {
        __m256 a, b;
        LoadUnit<kDtype>(key, u, a, b);
        even = _mm256_fmadd_ps(_mm256_load_ps(q + u * kUnit), a, even);
        odd = _mm256_fmadd_ps(_mm256_load_ps(q + u * kUnit + 8), b, odd);
      }
      sum[i] = _mm256_add_ps(even, odd);
    }
    const __m256 valid = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(tile.num_rows - j), lanes));
    __m256 sums = SumOfEach(sum);
    if constexpr (kDtype == Dtype::kI8) {
      alignas(32) float scales[8];
      for (int i = 0; i < 8; ++i) scales[i] = KeyScale(row(j + i), tile.head_dim);
      sums = _mm256_mul_ps(sums, _mm256_load_ps(scales));
    }
    const __m256 scores = _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), sums, valid);
    _mm256_store_ps(weights + j, scores);
    max = _mm256_max_ps(max, scores);
  }

  float tile_max = MaxOf(max);
  if (tile.score_cap > 0) {
    CapScores(weights, tile.num_rows, tile.score_cap * kLog2E);
    CapScores(&tile_max, 1, tile.score_cap * kLog2E);
  }
  __m256 total = _mm256_setzero_ps();
  for (int j = 0; j < tile.num_rows; j += 8) {
    const __m256 weight = Exp2(_mm256_sub_ps(_mm256_load_ps(weights + j), _mm256_set1_ps(tile_max)));
    total = _mm256_add_ps(total, weight);
    _mm256_store_ps(weights + j, weight);
  }
  tile.m[head] = tile_max * kLn2;
  tile.l[head] = SumOf(total);

  if constexpr (kDtype == Dtype::kI8) {
    for (int j = 0; j < tile.num_rows; ++j) weights[j] *= ValueScale(row(j), tile.head_dim);
  }
  float* o = tile.o + static_cast<int64_t>(head) * tile.head_dim;
  for (int u = 0; u < num_units; u += 4) {  // 64 elements: 8 accumulators
    const int units = num_units - u < 4 ? num_units - u : 4;
    __m256 sum[8] = {};
    for (int j = 0; j < tile.num_rows; ++j) {
      const __m256 weight = _mm256_broadcast_ss(weights + j);
      const char* values = row(j) + value_bytes;
      for (int i = 0; i < units; ++i) {
        __m256 a, b;
        LoadUnit<kDtype>(values, u + i, a, b);
        sum[2 * i] = _mm256_fmadd_ps(weight, a, sum[2 * i]);
        sum[2 * i + 1] = _mm256_fmadd_ps(weight, b, sum[2 * i + 1]);
      }
    }
    alignas(32) float shuffled[kUnit];
    for (int i = 0; i < units; ++i) {
      _mm256_store_ps(shuffled, sum[2 * i]);
      _mm256_store_ps(shuffled + 8, sum[2 * i + 1]);
      for (int d = 0; d < kUnit; ++d) o[(u + i) * kUnit + InOrder<kDtype>(d)] = shuffled[d];
    }
  }
}

}  // namespace

void DecodeAttentionTile(const DecodeTile& tile) {
  if (tile.head_dim % kUnit != 0 || tile.head_dim > kMaxHeadDim) return portable::DecodeAttentionTile(tile);
  for (int head = 0; head < tile.group_size; ++head) {
    const auto run = tile.kv_dtype == Dtype::kBf16 ? RunHead<Dtype::kBf16>
                     : tile.kv_dtype == Dtype::kI8 ? RunHead<Dtype::kI8>
                                                   : RunHead<Dtype::kF32>;
    run(tile, head);
  }
}

}  // namespace winnow::avx2
