#pragma once
#include <immintrin.h>

#include <cstdint>

#include "common/base/dtype.h"

// AVX-512 helpers. Internal linkage: see scalar.h.

namespace winnow::avx512 {
namespace {

// 2^x to about one unit in the last place, for x <= 127; -inf gives 0. Minimax on [0, 1) of degree 5 (7.5e-8), exponent
// by scalef.
inline __m512 Exp2(__m512 x) {
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
  __m512 p = _mm512_set1_ps(1.877576673e-03f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.989340095e-03f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.582631805e-02f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.401536170e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931530732e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.999999251e-01f));
  return _mm512_scalef_ps(p, x);  // p * 2^floor(x)
}

// e^x to about two units in the last place over the whole range; -inf gives 0.
inline __m512 Exp(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), _mm512_min_ps(_mm512_set1_ps(89.0f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);  // ln 2 in two parts, the first exact in 9 bits
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(8.297655080e-03f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.191538199e-02f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.666757473e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.999889485e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.999996920e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.000000072f));
  return _mm512_scalef_ps(p, n);
}

// e^x of the lanes in `mask` for x <= 0, to a few units in the last place and the error of x * log2(e); 0 of x below
// -126 ln 2, of -inf, of NaN and of the other lanes. Cheaper than Exp: the exponent is added as an integer.
inline __m512 ExpOfNegative(__mmask16 mask, __m512 x) {
  const __m512 log2e = _mm512_set1_ps(1.44269504f);
  const __m512 rounder = _mm512_set1_ps(0x1.8p23f);  // leaves round(x * log2e) in the low bits
  const __m512 shifted = _mm512_fmadd_ps(x, log2e, rounder);
  const __m512 r = _mm512_fmsub_ps(x, log2e, _mm512_sub_ps(shifted, rounder));  // in [-1/2, 1/2]
  __m512 p = _mm512_set1_ps(1.327647198e-03f);                                  // minimax of degree 5
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.675541334e-03f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550713274e-02f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402211972e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931469671e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.000000072e+00f));
  const __mmask16 normal = _mm512_mask_cmp_ps_mask(mask, x, _mm512_set1_ps(-87.33f), _CMP_GE_OQ);
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(p), exponent));
}

// The even and odd elements of 32 bf16.
inline __m512 EvenOf(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
inline __m512 OddOf(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// 16 consecutive elements as f32.
template <Dtype kDtype>
inline __m512 Load16(const void* data, int64_t element) {
  if constexpr (kDtype == Dtype::kF32) {
    return _mm512_loadu_ps(static_cast<const float*>(data) + element);
  } else if constexpr (kDtype == Dtype::kI8) {
    const auto* const codes = reinterpret_cast<const __m128i*>(static_cast<const int8_t*>(data) + element);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)));
  } else {
    const __m256i narrow =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(data) + element));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
}

// f32 rounded to nearest even bf16, still as f32. NaN may become another NaN or infinity.
inline __m512 RoundToBf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
  return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// The first n (at most 16) lanes.
inline __mmask16 FirstLanes(int n) {
  return n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
}

// Rows of a 16 x 16 matrix to columns, in place.
inline void Transpose16(__m512 (&rows)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  const auto pd = [](__m512 x) { return _mm512_castps_pd(x); };
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[i]), pd(t[i + 2])));
    rows[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[i]), pd(t[i + 2])));
    rows[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[i + 1]), pd(t[i + 3])));
    rows[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[i + 1]), pd(t[i + 3])));
  }
  // rows[4g + c], lane block b: column 4b + c of rows 4g .. 4g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512 ab_low = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0x44);
    const __m512 ab_high = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0xee);
    const __m512 cd_low = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0x44);
    const __m512 cd_high = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0xee);
    t[c] = _mm512_shuffle_f32x4(ab_low, cd_low, 0x88);
    t[4 + c] = _mm512_shuffle_f32x4(ab_low, cd_low, 0xdd);
    t[8 + c] = _mm512_shuffle_f32x4(ab_high, cd_high, 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = t[i];
}

}  // namespace
}  // namespace winnow::avx512
