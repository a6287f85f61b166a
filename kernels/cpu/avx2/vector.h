#pragma once
#include <immintrin.h>

#include <cstdint>

#include "common/base/dtype.h"

// AVX2 helpers. Internal linkage: see scalar.h.

namespace winnow::avx2 {
namespace {

// The even and odd elements of 16 bf16.
inline __m256 EvenOf(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
inline __m256 OddOf(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline __m256i LoadPairs(const void* data) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(data));
}

// 2^x for x <= 127 to about one unit in the last place; below -126 gives 0. Minimax on [-0.5, 0.5] of degree 5.
inline __m256 Exp2(__m256 x) {
  const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_sub_ps(x, n);
  __m256 p = _mm256_set1_ps(1.327647198e-03f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(9.675541334e-03f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.550713274e-02f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(2.402211972e-01f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(6.931469671e-01f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.000000072e+00f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const __m256 result = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  return _mm256_and_ps(result, _mm256_cmp_ps(x, _mm256_set1_ps(-126), _CMP_GE_OQ));
}

// Lane i of the result: the sum of the lanes of v[i].
inline __m256 SumOfEach(const __m256 (&v)[8]) {
  const __m256 ab = _mm256_hadd_ps(v[0], v[1]);
  const __m256 cd = _mm256_hadd_ps(v[2], v[3]);
  const __m256 ef = _mm256_hadd_ps(v[4], v[5]);
  const __m256 gh = _mm256_hadd_ps(v[6], v[7]);
  const __m256 abcd = _mm256_hadd_ps(ab, cd);  // each half: a b c d over that half's lanes
  const __m256 efgh = _mm256_hadd_ps(ef, gh);
  return _mm256_add_ps(_mm256_permute2f128_ps(abcd, efgh, 0x20), _mm256_permute2f128_ps(abcd, efgh, 0x31));
}

inline float SumOf(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}

inline float MaxOf(__m256 v) {
  __m128 max = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  max = _mm_max_ps(max, _mm_movehl_ps(max, max));
  return _mm_cvtss_f32(_mm_max_ss(max, _mm_shuffle_ps(max, max, 1)));
}

}  // namespace
}  // namespace winnow::avx2
