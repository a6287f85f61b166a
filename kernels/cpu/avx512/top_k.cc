#include "kernels/cpu/top_k.h"

#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/vector.h"

namespace winnow::avx512 {
namespace {

// As ordered_key.h, 16 at a time.
inline __m512i OrderedKeys(__m512 values) {
  const __m512i bits = _mm512_castps_si512(_mm512_add_ps(values, _mm512_setzero_ps()));
  const __m512i sign = _mm512_or_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm512_xor_si512(bits, sign);
}

uint32_t Filter(const float* values, uint32_t n, uint32_t first, float pivot, uint32_t* keys, uint32_t* indices) {
  const __m512 pivots = _mm512_set1_ps(pivot);
  __m512i index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)),
                                   _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  uint32_t count = 0;
  uint32_t i = 0;
  // Whole stores (compressing ones are slow on some cores) reach up to 16 words past `count`, which is at most i:
  // inside the arrays but for the last vector.
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(values + i);
    const __mmask16 keep = _mm512_cmp_ps_mask(v, pivots, _CMP_GE_OQ);
    _mm512_storeu_si512(keys + count, _mm512_maskz_compress_epi32(keep, OrderedKeys(v)));
    _mm512_storeu_si512(indices + count, _mm512_maskz_compress_epi32(keep, index));
    count += static_cast<uint32_t>(__builtin_popcount(keep));
    index = _mm512_add_epi32(index, _mm512_set1_epi32(16));
  }
  const __mmask16 lanes = FirstLanes(static_cast<int>(n - i));
  const __m512 v = _mm512_maskz_loadu_ps(lanes, values + i);
  const __mmask16 keep = _mm512_mask_cmp_ps_mask(lanes, v, pivots, _CMP_GE_OQ);
  _mm512_mask_compressstoreu_epi32(keys + count, keep, OrderedKeys(v));
  _mm512_mask_compressstoreu_epi32(indices + count, keep, index);
  return count + static_cast<uint32_t>(__builtin_popcount(keep));
}

uint32_t CountAtLeast(const uint32_t* keys, uint32_t n, uint32_t least) {
  const __m512i bounds = _mm512_set1_epi32(static_cast<int>(least));
  uint32_t count[4] = {};
  uint32_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int v = 0; v < 4; ++v) {
      const __mmask16 keep = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(keys + i + 16 * v), bounds);
      count[v] += static_cast<uint32_t>(__builtin_popcount(keep));
    }
  }
  for (; i < n; i += 16) {
    const __mmask16 lanes = FirstLanes(static_cast<int>(n - i));
    const __m512i values = _mm512_maskz_loadu_epi32(lanes, keys + i);
    count[0] += static_cast<uint32_t>(__builtin_popcount(_mm512_mask_cmpge_epu32_mask(lanes, values, bounds)));
  }
  return count[0] + count[1] + count[2] + count[3];
}

void Collect(const uint32_t* keys, const uint32_t* indices, uint32_t n, TopKThreshold threshold, uint32_t k,
             uint32_t* out) {
  const __m512i bounds = _mm512_set1_epi32(static_cast<int>(threshold.key));
  uint32_t taken = 0;
  for (uint32_t i = 0; taken < k; i += 16) {
    const __mmask16 lanes = FirstLanes(static_cast<int>(n - i));
    const __m512i v = _mm512_maskz_loadu_epi32(lanes, keys + i);
    __mmask16 ties = _mm512_mask_cmpeq_epu32_mask(lanes, v, bounds);
    while (static_cast<uint32_t>(__builtin_popcount(ties)) > threshold.ties) {
      ties = static_cast<__mmask16>(ties & ~(0x8000u >> (__builtin_clz(ties) - 16)));  // the highest goes
    }
    threshold.ties -= static_cast<uint32_t>(__builtin_popcount(ties));
    const __mmask16 keep = _mm512_mask_cmpgt_epu32_mask(lanes, v, bounds) | ties;
    const __m512i packed = _mm512_maskz_compress_epi32(keep, _mm512_maskz_loadu_epi32(lanes, indices + i));
    _mm512_mask_storeu_epi32(out + taken, FirstLanes(static_cast<int>(k - taken)), packed);
    taken += static_cast<uint32_t>(__builtin_popcount(keep));
  }
}

}  // namespace

void TopK(const TopKParams& params) {
  RunTopK(params, {Filter, CountAtLeast, Collect});
}

}  // namespace winnow::avx512
