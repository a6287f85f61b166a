#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/int8_sums.h"

namespace winnow::avx512 {
namespace {

// vpdpbusd multiplies unsigned by signed: keys are taken as k + 128, and sums start from -128 times the sum of the
// query.
struct VnniStep : Int8Sums {
  static constexpr int kWords = 1;

  static void LayOut(const float* query, int head_dim, int32_t* out) {
    int8_t values[kMaxScoredHeadDim];
    const float scale = QuantizeInt8(query, head_dim, values);
    int32_t sum = 0;
    for (int d = 0; d < head_dim; ++d) sum += values[d];
    std::memcpy(out, values, (head_dim + 3) / 4 * 4);
    SetTail(out, scale, -128 * sum);
  }

  template <int kQueries>
  static inline __attribute__((always_inline)) void Add(const int32_t* q, const char* a, const char* b,
                                                        __m512i (&sum)[kQueries][2]) {
    const __m512i offset = _mm512_set1_epi8(-128);
    const __m512i keys[2] = {_mm512_xor_si512(_mm512_loadu_si512(a), offset),
                             _mm512_xor_si512(_mm512_loadu_si512(b), offset)};
    for (int i = 0; i < kQueries; ++i) {
      const __m512i four = _mm512_set1_epi32(q[i * kQueryStride]);
      for (int v = 0; v < 2; ++v) sum[i][v] = _mm512_dpbusd_epi32(sum[i][v], keys[v], four);
    }
  }
};

}  // namespace

void KeyScoreInt8Vnni(const KeyScoreParams& params) {
  ScoreTiles<VnniStep>(params);
}

}  // namespace winnow::avx512
