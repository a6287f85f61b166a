#include <cmath>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/panel.h"
#include "kernels/cpu/avx512/vector.h"

namespace winnow::avx512 {
namespace {

constexpr int kMaxHeadDim = 1024;

// A tile is a panel of 32 outputs; up to six queries share one pass over it.
template <Dtype kDtype>
void ScoreTiles(const KeyScoreParams& p) {
  const int num_tiles = (p.num_keys + kBlockTokens - 1) / kBlockTokens;
  alignas(64) float q[kTileRows * kMaxHeadDim];
  const __m512 scale = _mm512_set1_ps(p.scale);
  for (int first = 0; first < p.num_queries; first += kTileRows) {
    const int count = p.num_queries - first < kTileRows ? p.num_queries - first : kTileRows;
    const float* from = p.queries + static_cast<int64_t>(first) * p.head_dim;
    for (int i = 0; i < count * p.head_dim; i += 16) {
      const __mmask16 mask = FirstLanes(count * p.head_dim - i);
      const __m512 values = _mm512_maskz_loadu_ps(mask, from + i);
      _mm512_mask_storeu_ps(q + i, mask, kDtype == Dtype::kBf16 ? RoundToBf16(values) : values);
    }
    for (int t = 0; t < num_tiles; ++t) {
      alignas(64) float scores[kTileRows][kBlockTokens];
      PanelRows<2, kDtype>(q, p.head_dim, count, p.tiles[t], kBlockTokens, p.head_dim, scores[0], kBlockTokens, false);
      for (int i = 0; i < count; ++i) {
        float* out = p.scores + (first + i) * p.scores_stride + static_cast<int64_t>(t) * kBlockTokens;
        _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_load_ps(scores[i]), scale));
        _mm512_storeu_ps(out + 16, _mm512_mul_ps(_mm512_load_ps(scores[i] + 16), scale));
      }
    }
  }
}

float MaxOf(const float* x, int n) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 max[4] = {lowest, lowest, lowest, lowest};
  for (int j = 0; j < n; j += 64) {
    for (int v = 0; v < 4; ++v) {
      max[v] = _mm512_max_ps(max[v], _mm512_mask_loadu_ps(lowest, FirstLanes(n - j - 16 * v), x + j + 16 * v));
    }
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3])));
}

}  // namespace

void KeyScore(const KeyScoreParams& params) {
  WINNOW_CHECK(params.head_dim % 2 == 0 && params.head_dim <= kMaxHeadDim && params.dtype != Dtype::kF16);
  if (params.dtype == Dtype::kBf16) {
    ScoreTiles<Dtype::kBf16>(params);
  } else {
    ScoreTiles<Dtype::kF32>(params);
  }
}

void SoftmaxSum(const SoftmaxSumParams& params) {
  constexpr float kEmpty = -__builtin_inff();
  const int n = params.num_keys;
  for (int j = 0; j < n; j += 16) _mm512_mask_storeu_ps(params.importance + j, FirstLanes(n - j), _mm512_setzero_ps());
  for (int i = 0; i < params.num_queries; ++i) {
    const float* scores = params.scores + i * params.scores_stride;
    const float max = MaxOf(scores, n);
    if (max == kEmpty) {
      if (params.lse != nullptr) params.lse[i] = kEmpty;
      continue;
    }
    const __m512 offset = _mm512_set1_ps(max);
    const auto exp_at = [&](int j) {
      return Exp(_mm512_sub_ps(_mm512_mask_loadu_ps(_mm512_set1_ps(kEmpty), FirstLanes(n - j), scores + j), offset));
    };
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int j = 0; j < n; j += 32) {
      sum[0] = _mm512_add_ps(sum[0], exp_at(j));
      sum[1] = _mm512_add_ps(sum[1], exp_at(j + 16));
    }
    const float total = _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
    const __m512 inverse = _mm512_set1_ps(1 / total);
    for (int j = 0; j < n; j += 16) {
      const __mmask16 mask = FirstLanes(n - j);
      const __m512 old = _mm512_maskz_loadu_ps(mask, params.importance + j);
      _mm512_mask_storeu_ps(params.importance + j, mask, _mm512_fmadd_ps(exp_at(j), inverse, old));
    }
    if (params.lse != nullptr) params.lse[i] = max + std::log(total);
  }
}

}  // namespace winnow::avx512
