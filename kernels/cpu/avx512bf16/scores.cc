#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/score_tiles.h"
#include "kernels/cpu/avx512/softmax_tiles.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/avx512bf16/avx512bf16.h"
#include "kernels/cpu/score_cap.h"

namespace winnow::avx512bf16 {
namespace {

// As _mm512_dpbf16_ps, for which GCC 12 copies most accumulators around every step of a loop.
inline __attribute__((always_inline)) __m512 AddPairs(__m512 sum, __m512bh a, __m512bh b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

// A pair of elements per instruction.
struct DotStep : avx512::FloatSums {
  using Word = uint32_t;
  static constexpr int kWords = 1;

  static void LayOut(const float* query, int head_dim, uint32_t* out) {
    for (int i = 0; i < head_dim; i += 16) {
      const __m512 values = _mm512_maskz_loadu_ps(avx512::FirstLanes(head_dim - i), query + i);
      const __mmask8 mask = static_cast<__mmask8>(avx512::FirstLanes((head_dim - i) / 2));
      _mm256_mask_storeu_epi32(out + i / 2, mask, (__m256i)_mm512_cvtneps_pbh(values));
    }
  }

  template <int kQueries>
  static inline __attribute__((always_inline)) void Add(const uint32_t* q, const char* a, const char* b,
                                                        __m512 (&sum)[kQueries][2]) {
    const __m512bh keys[2] = {(__m512bh)_mm512_loadu_si512(a), (__m512bh)_mm512_loadu_si512(b)};
    avx512::Unrolled<kQueries>([&](int i) __attribute__((always_inline)) {
      const __m512bh pair = (__m512bh)_mm512_set1_epi32(static_cast<int>(q[i * avx512::kQueryStride]));
      sum[i][0] = AddPairs(sum[i][0], keys[0], pair);
      sum[i][1] = AddPairs(sum[i][1], keys[1], pair);
    });
  }
};

}  // namespace

void KeyScore(const KeyScoreParams& params) {
  if (params.dtype != Dtype::kBf16) return avx512::KeyScore(params);
  if (ScoreCapped(params, KeyScore)) return;
  avx512::ScoreTiles<DotStep>(params);
}

void KeySoftmax(const KeySoftmaxParams& params) {
  if (params.score.dtype != Dtype::kBf16) return avx512::KeySoftmax(params);
  if (params.score.score_cap > 0) return RunKeySoftmax(params, KeyScore, avx512::ExpRunAlone);
  avx512::SoftmaxTiles<DotStep>(params);
}

}  // namespace winnow::avx512bf16
