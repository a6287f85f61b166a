#pragma once
#include <cstring>
#include <numeric>

#include "kernels/cpu/avx512/score_tiles.h"
#include "kernels/cpu/quantize.h"

// What the int8 and int4 steps share. Internal linkage: see scalar.h.

namespace winnow::avx512 {
namespace {

// Integer dot products, exact in f32. Behind a query's words lie its scale and what its sums start from.
struct Int8Sums {
  using Word = int32_t;
  using Sum = __m512i;
  static constexpr int kLinesBehind = 1;  // scales

  static void SetTail(int32_t* words, float scale, int32_t start) {
    std::memcpy(words + kMaxScoredHeadDim, &scale, sizeof scale);
    words[kMaxScoredHeadDim + 1] = start;
  }
  static __m512i Start(const int32_t* q) { return _mm512_set1_epi32(q[kMaxScoredHeadDim + 1]); }
  static __m512 Finish(__m512i sum, const int32_t* q, float scale, const char* behind) {
    float query_scale;
    std::memcpy(&query_scale, q + kMaxScoredHeadDim, sizeof query_scale);
    const __m512 factors = _mm512_mul_ps(_mm512_set1_ps(query_scale * scale), _mm512_loadu_ps(behind));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factors);
  }
};

// Keys are taken as 0 .. 15, as they are stored, and sums start from -8 times the sum of the query.
struct Int4Sums : Int8Sums {
  static constexpr int kWords = 2;

  static void LayOut(const float* query, int head_dim, int32_t* out) {
    int8_t values[kMaxScoredHeadDim];
    const float scale = QuantizeInt8(query, head_dim, values);
    std::memcpy(out, values, (head_dim + 7) / 8 * 8);
    SetTail(out, scale, -8 * std::accumulate(values, values + head_dim, 0));
  }
  // Of a line: the first four elements of each key, and the last.
  static inline __attribute__((always_inline)) __m512i Low(__m512i line) {
    return _mm512_and_si512(line, _mm512_set1_epi8(15));
  }
  static inline __attribute__((always_inline)) __m512i High(__m512i line) { return Low(_mm512_srli_epi16(line, 4)); }
};

}  // namespace
}  // namespace winnow::avx512
