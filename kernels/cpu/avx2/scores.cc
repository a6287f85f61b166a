#include <cstring>

#include "common/base/check.h"
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/panel.h"
#include "kernels/cpu/index_keys.h"
#include "kernels/cpu/key_groups.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/row_keys.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/score_cap.h"

// A group of 16 keys is two vectors; up to kTileRows queries share one pass over the keys.

namespace winnow::avx2 {
namespace {

constexpr int kVectors = kKeyGroup / 8;
constexpr int kInt4QueryWords = kMaxScoredHeadDim / 4 + 1;  // four elements each; the last: what sums start from

template <Dtype kDtype>
void ScoreFloats(const KeyScoreParams& p, const float* queries, int count, float* scores) {
  using TileFn = void (*)(const float*, int64_t, const void*, int64_t, int, float*, int64_t, bool);
  static constexpr TileFn kOfQueries[] = {
      nullptr,
      PanelTile<1, kVectors, kDtype>,
      PanelTile<2, kVectors, kDtype>,
      PanelTile<3, kVectors, kDtype>,
      PanelTile<4, kVectors, kDtype>,
      PanelTile<5, kVectors, kDtype>,
      PanelTile<6, kVectors, kDtype>,
  };
  float q[kTileRows * kMaxScoredHeadDim];
  for (int i = 0; i < count * p.head_dim; ++i) q[i] = kDtype == Dtype::kBf16 ? RoundToBf16(queries[i]) : queries[i];
  const KeyGroups groups(p);
  for (int g = 0; g < groups.count(); ++g) {
    float* out = scores + static_cast<int64_t>(g) * kKeyGroup;
    kOfQueries[count](q, p.head_dim, groups.Lines(g), kBlockTokens, p.head_dim, out, p.scores_stride, false);
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < kKeyGroup; ++j) out[i * p.scores_stride + j] *= p.scale;
    }
  }
}

template <int kQueries>
void StoreScores(const __m256i (&sum)[kQueries][kVectors], const float* query_factors, const char* scale_line,
                 float* out, int64_t stride) {
  const float* scales = reinterpret_cast<const float*>(scale_line);
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const __m256 factors = _mm256_mul_ps(_mm256_set1_ps(query_factors[i]), _mm256_loadu_ps(scales + 8 * v));
      _mm256_storeu_ps(out + i * stride + 8 * v, _mm256_mul_ps(_mm256_cvtepi32_ps(sum[i][v]), factors));
    }
  }
}

// Even and odd bytes widen to 16 bits, and pairs are multiplied and added exactly.
template <int kQueries>
void Int8Group(const int32_t* q, const float* query_factors, const char* lines, int steps, float* out, int64_t stride) {
  __m256i sum[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm256_setzero_si256();
  }
  for (int s = 0; s < steps; ++s, lines += kStepBytes) {
    for (int v = 0; v < kVectors; ++v) {
      const __m256i keys = LoadPairs(lines + 32 * v);
      const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(keys, 8), 8);
      const __m256i odd = _mm256_srai_epi16(keys, 8);
      for (int i = 0; i < kQueries; ++i) {
        const int32_t* words = q + i * (kMaxScoredHeadDim / 2) + 2 * s;
        sum[i][v] = _mm256_add_epi32(sum[i][v], _mm256_madd_epi16(even, _mm256_set1_epi32(words[0])));
        sum[i][v] = _mm256_add_epi32(sum[i][v], _mm256_madd_epi16(odd, _mm256_set1_epi32(words[1])));
      }
    }
  }
  StoreScores<kQueries>(sum, query_factors, lines, out, stride);
}

void ScoreInt8(const KeyScoreParams& p, const float* queries, int count, float* scores) {
  using GroupFn = void (*)(const int32_t*, const float*, const char*, int, float*, int64_t);
  static constexpr GroupFn kOfQueries[] = {nullptr,      Int8Group<1>, Int8Group<2>, Int8Group<3>,
                                           Int8Group<4>, Int8Group<5>, Int8Group<6>};
  int32_t q[kTileRows * kMaxScoredHeadDim / 2];
  float factors[kTileRows];
  const auto pair = [](int8_t low, int8_t high) { return (low & 0xffff) | static_cast<int32_t>(high) * 65536; };
  for (int i = 0; i < count; ++i) {
    int8_t values[kMaxScoredHeadDim];
    factors[i] = QuantizeInt8(queries + static_cast<int64_t>(i) * p.head_dim, p.head_dim, values) * p.scale;
    int32_t* words = q + i * (kMaxScoredHeadDim / 2);
    for (int d = 0; d < p.head_dim; d += 4, words += 2) {
      words[0] = pair(values[d], values[d + 2]);
      words[1] = pair(values[d + 1], values[d + 3]);
    }
  }
  const KeyGroups groups(p);
  for (int g = 0; g < groups.count(); ++g) {
    kOfQueries[count](q, factors, groups.Lines(g), TileSteps(p), scores + static_cast<int64_t>(g) * kKeyGroup,
                      p.scores_stride);
  }
}

// Keys are 0 .. 15 here and sums start from -8 times the sum of the query. Four products of at most 15 * 127 are added
// in 16 bits.
template <int kQueries>
void Int4Group(const int32_t* q, const float* query_factors, const char* lines, int steps, float* out, int64_t stride) {
  __m256i sum[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i) {
    const __m256i start = _mm256_set1_epi32(q[i * kInt4QueryWords + kInt4QueryWords - 1]);
    for (int v = 0; v < kVectors; ++v) sum[i][v] = start;
  }
  const __m256i low_halves = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  for (int s = 0; s < steps; ++s, lines += kStepBytes) {
    for (int v = 0; v < kVectors; ++v) {
      const __m256i keys = LoadPairs(lines + 32 * v);
      const __m256i low = _mm256_and_si256(keys, low_halves);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(keys, 4), low_halves);
      for (int i = 0; i < kQueries; ++i) {
        const int32_t* words = q + i * kInt4QueryWords + 2 * s;
        const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(low, _mm256_set1_epi32(words[0])),
                                                  _mm256_maddubs_epi16(high, _mm256_set1_epi32(words[1])));
        sum[i][v] = _mm256_add_epi32(sum[i][v], _mm256_madd_epi16(products, ones));
      }
    }
  }
  StoreScores<kQueries>(sum, query_factors, lines, out, stride);
}

void ScoreInt4(const KeyScoreParams& p, const float* queries, int count, float* scores) {
  using GroupFn = void (*)(const int32_t*, const float*, const char*, int, float*, int64_t);
  static constexpr GroupFn kOfQueries[] = {nullptr,      Int4Group<1>, Int4Group<2>, Int4Group<3>,
                                           Int4Group<4>, Int4Group<5>, Int4Group<6>};
  int32_t q[kTileRows * kInt4QueryWords];
  float factors[kTileRows];
  for (int i = 0; i < count; ++i) {
    int8_t values[kMaxScoredHeadDim];
    factors[i] = QuantizeInt8(queries + static_cast<int64_t>(i) * p.head_dim, p.head_dim, values) * p.scale;
    int32_t sum = 0;
    for (int d = 0; d < p.head_dim; ++d) sum += values[d];
    int32_t* words = q + i * kInt4QueryWords;
    std::memcpy(words, values, static_cast<size_t>(TileSteps(p)) * 8);
    words[kInt4QueryWords - 1] = -8 * sum;
  }
  const KeyGroups groups(p);
  for (int g = 0; g < groups.count(); ++g) {
    kOfQueries[count](q, factors, groups.Lines(g), TileSteps(p), scores + static_cast<int64_t>(g) * kKeyGroup,
                      p.scores_stride);
  }
}

}  // namespace

void KeyScore(const KeyScoreParams& p) {
  if (ScoreCapped(p, KeyScore)) return;
  if (p.in_rows) return ScoreRowKeys(p, IndexKeys, KeyScore);
  WINNOW_CHECK(p.head_dim % 2 == 0 && p.head_dim <= kMaxScoredHeadDim && p.dtype != Dtype::kF16);
  const auto score = p.dtype == Dtype::kI4     ? ScoreInt4
                     : p.dtype == Dtype::kI8   ? ScoreInt8
                     : p.dtype == Dtype::kBf16 ? ScoreFloats<Dtype::kBf16>
                                               : ScoreFloats<Dtype::kF32>;
  for (int first = 0; first < p.num_queries; first += kTileRows) {
    const int count = p.num_queries - first < kTileRows ? p.num_queries - first : kTileRows;
    score(p, p.queries + static_cast<int64_t>(first) * p.head_dim, count, p.scores + first * p.scores_stride);
  }
}

}  // namespace winnow::avx2
