#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/int8_sums.h"
#include "kernels/cpu/avx512/score_tiles.h"
#include "kernels/cpu/avx512/softmax_tiles.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/index_keys.h"
#include "kernels/cpu/row_keys.h"
#include "kernels/cpu/row_scales.h"
#include "kernels/cpu/score_cap.h"

namespace winnow::avx512 {
namespace {

struct F32Step : FloatSums {
  using Word = float;
  static constexpr int kWords = 1;

  static void LayOut(const float* query, int head_dim, float* out) { std::copy_n(query, head_dim, out); }

  template <int kQueries>
  static inline __attribute__((always_inline)) void Add(const float* q, const char* a, const char* b,
                                                        __m512 (&sum)[kQueries][2]) {
    const __m512 keys[2] = {_mm512_loadu_ps(a), _mm512_loadu_ps(b)};
    for (int i = 0; i < kQueries; ++i) {
      const __m512 value = _mm512_set1_ps(q[i * kQueryStride]);
      for (int v = 0; v < 2; ++v) sum[i][v] = _mm512_fmadd_ps(value, keys[v], sum[i][v]);
    }
  }
};

// Pairs of bf16 are widened in registers, once for all queries, and multiplied in f32.
struct Bf16Step : FloatSums {
  using Word = float;
  static constexpr int kWords = 2;

  static void LayOut(const float* query, int head_dim, float* out) {
    for (int i = 0; i < head_dim; i += 16) {
      const __mmask16 mask = FirstLanes(head_dim - i);
      _mm512_mask_storeu_ps(out + i, mask, RoundToBf16(_mm512_maskz_loadu_ps(mask, query + i)));
    }
  }

  template <int kQueries>
  static inline __attribute__((always_inline)) void Add(const float* q, const char* a, const char* b,
                                                        __m512 (&sum)[kQueries][2]) {
    const __m512i pairs[2] = {_mm512_loadu_si512(a), _mm512_loadu_si512(b)};
    const __m512 even[2] = {EvenOf(pairs[0]), EvenOf(pairs[1])};
    for (int i = 0; i < kQueries; ++i) {
      const __m512 value = _mm512_set1_ps(q[i * kQueryStride]);
      for (int v = 0; v < 2; ++v) sum[i][v] = _mm512_fmadd_ps(value, even[v], sum[i][v]);
    }
    const __m512 odd[2] = {OddOf(pairs[0]), OddOf(pairs[1])};
    for (int i = 0; i < kQueries; ++i) {
      const __m512 value = _mm512_set1_ps(q[i * kQueryStride + 1]);
      for (int v = 0; v < 2; ++v) sum[i][v] = _mm512_fmadd_ps(value, odd[v], sum[i][v]);
    }
  }
};

// Without VNNI: even and odd bytes widen to 16 bits, and pairs are multiplied and added exactly.
struct WideInt8Step : Int8Sums {
  static constexpr int kWords = 2;

  static void LayOut(const float* query, int head_dim, int32_t* out) {
    int8_t values[kMaxScoredHeadDim];
    const float scale = QuantizeInt8(query, head_dim, values);
    const auto pair = [](int8_t low, int8_t high) { return (low & 0xffff) | static_cast<int32_t>(high) * 65536; };
    for (int d = 0; d < head_dim; d += 4, out += 2) {
      out[0] = pair(values[d], values[d + 2]);
      out[1] = pair(values[d + 1], values[d + 3]);
    }
    SetTail(out - (head_dim + 3) / 4 * 2, scale, 0);
  }

  template <int kQueries>
  static inline __attribute__((always_inline)) void Add(const int32_t* q, const char* a, const char* b,
                                                        __m512i (&sum)[kQueries][2]) {
    const __m512i keys[2] = {_mm512_loadu_si512(a), _mm512_loadu_si512(b)};
    for (int v = 0; v < 2; ++v) {
      const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(keys[v], 8), 8);
      const __m512i odd = _mm512_srai_epi16(keys[v], 8);
      for (int i = 0; i < kQueries; ++i) {
        const int32_t* words = q + i * kQueryStride;
        sum[i][v] = _mm512_add_epi32(sum[i][v], _mm512_madd_epi16(even, _mm512_set1_epi32(words[0])));
        sum[i][v] = _mm512_add_epi32(sum[i][v], _mm512_madd_epi16(odd, _mm512_set1_epi32(words[1])));
      }
    }
  }
};

// Without VNNI: four products of at most 15 * 127 are added in 16 bits.
struct WideInt4Step : Int4Sums {
  template <int kQueries>
  static inline __attribute__((always_inline)) void Add(const int32_t* q, const char* a, const char* b,
                                                        __m512i (&sum)[kQueries][2]) {
    const __m512i lines[2] = {_mm512_loadu_si512(a), _mm512_loadu_si512(b)};
    for (int v = 0; v < 2; ++v) {
      const __m512i low = Low(lines[v]), high = High(lines[v]);
      for (int i = 0; i < kQueries; ++i) {
        const int32_t* words = q + i * kQueryStride;
        const __m512i products = _mm512_add_epi16(_mm512_maddubs_epi16(low, _mm512_set1_epi32(words[0])),
                                                  _mm512_maddubs_epi16(high, _mm512_set1_epi32(words[1])));
        sum[i][v] = _mm512_add_epi32(sum[i][v], _mm512_madd_epi16(products, _mm512_set1_epi16(1)));
      }
    }
  }
};

// As IndexKeys, of whole groups of keys of whole vectors by transposing words.
void IndexRowKeys(const IndexKeysParams& p) {
  if (p.num_rows != kKeyGroup || p.head_dim % 64 != 0) return IndexKeys(p);
  const char* const rows = static_cast<const char*>(p.rows);
  char* const lines = static_cast<char*>(p.tile) + p.first_row * sizeof(float);
  for (int d = 0; d < p.head_dim; d += 64) {
    __m512 words[kKeyGroup];
    for (int i = 0; i < kKeyGroup; ++i) words[i] = _mm512_loadu_ps(rows + i * static_cast<int64_t>(p.row_elements) + d);
    Transpose16(words);
    for (int i = 0; i < kKeyGroup; ++i) _mm512_storeu_ps(lines + (d / 4 + i) * kStepBytes, words[i]);
  }
  float* const scales = reinterpret_cast<float*>(lines + p.head_dim / 4 * kStepBytes);
  for (int i = 0; i < kKeyGroup; ++i) {
    const float scale = KeyScale(rows + i * static_cast<int64_t>(p.row_elements), p.head_dim);
    scales[i] = __builtin_isfinite(scale) ? scale : 0;
  }
}

bool HasVnni() {
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni");
  return has_vnni;
}

}  // namespace

void KeyScoreInt8(const KeyScoreParams& params) {
  ScoreTiles<WideInt8Step>(params);
}

void KeyScoreInt4(const KeyScoreParams& params) {
  ScoreTiles<WideInt4Step>(params);
}

void KeyScore(const KeyScoreParams& params) {
  if (ScoreCapped(params, KeyScore)) return;
  if (params.in_rows) return ScoreRowKeys(params, IndexRowKeys, KeyScore);
  switch (params.dtype) {
    case Dtype::kF32:
      return ScoreTiles<F32Step>(params);
    case Dtype::kBf16:
      return ScoreTiles<Bf16Step>(params);
    case Dtype::kI8:
      return HasVnni() ? KeyScoreInt8Vnni(params) : KeyScoreInt8(params);
    case Dtype::kI4:
      return HasVnni() ? KeyScoreInt4Vnni(params) : KeyScoreInt4(params);
    case Dtype::kF8:
    case Dtype::kF16:
      break;
  }
  WINNOW_CHECK(false);
}

void KeySoftmax(const KeySoftmaxParams& params) {
  if (params.score.in_rows || params.score.score_cap > 0) return RunKeySoftmax(params, KeyScore, ExpRunAlone);
  switch (params.score.dtype) {
    case Dtype::kF32:
      return SoftmaxTiles<F32Step>(params);
    case Dtype::kBf16:
      return SoftmaxTiles<Bf16Step>(params);
    case Dtype::kI8:
      return HasVnni() ? KeySoftmaxInt8Vnni(params) : SoftmaxTiles<WideInt8Step>(params);
    case Dtype::kI4:
      return HasVnni() ? KeySoftmaxInt4Vnni(params) : SoftmaxTiles<WideInt4Step>(params);
    case Dtype::kF8:
    case Dtype::kF16:
      break;
  }
  WINNOW_CHECK(false);
}

void ScoreSoftmax(const ScoreSoftmaxParams& params) {
  RunScoreSoftmax(params, ExpRunAlone);
}

void SoftmaxSum(const SoftmaxSumParams& p) {
  const int num_runs = static_cast<int>(SoftmaxRuns(p.num_keys));
  for (int first = p.first; first < p.last;) {
    const int run = first / kSoftmaxRun;
    const int end = std::min(p.last, (run + 1) * kSoftmaxRun);
    for (int j = first; j < end; j += 16) {
      const __mmask16 mask = FirstLanes(end - j);
      __m512 sum = _mm512_setzero_ps();
      for (int i = 0; i < p.num_queries; ++i) {
        const __m512 weights = _mm512_maskz_loadu_ps(mask, p.weights + i * p.weights_stride + j);
        sum = _mm512_fmadd_ps(weights, _mm512_set1_ps(p.run_scales[i * num_runs + run]), sum);
      }
      _mm512_mask_storeu_ps(p.importance + j, mask, _mm512_max_ps(sum, _mm512_setzero_ps()));  // NaN to 0
    }
    first = end;
  }
}

}  // namespace winnow::avx512
