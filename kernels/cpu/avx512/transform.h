#pragma once
#include <cmath>

#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/matmul.h"

// Input transforms of a matmul row, 16 elements at a time.

namespace winnow::avx512 {
namespace {

inline float RmsNormScale(const float* x, int n, float epsilon) {
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int i = 0; i < n; i += 64) {
    for (int v = 0; v < 4; ++v) {
      const __m512 value = _mm512_maskz_loadu_ps(FirstLanes(n - i - 16 * v), x + i + 16 * v);
      sum[v] = _mm512_fmadd_ps(value, value, sum[v]);
    }
  }
  const float total = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
  return 1 / std::sqrt(total / static_cast<float>(n) + epsilon);
}

// Calls store(i, values) for i = 0, 16, .. below PackedInFeatures; values beyond in_features are zero.
template <typename Store>
inline void TransformRow(const MatmulParams& params, int row, const Store& store) {
  const float* x = params.x + row * params.x_stride;
  const int n = params.weight.in_features;
  const int padded = PackedInFeatures(n);
  switch (params.transform) {
    case InputTransform::kNone:
      for (int i = 0; i < padded; i += 16) store(i, _mm512_maskz_loadu_ps(FirstLanes(n - i), x + i));
      return;
    case InputTransform::kRmsNorm: {
      const __m512 scale = _mm512_set1_ps(RmsNormScale(x, n, params.norm_epsilon));
      for (int i = 0; i < padded; i += 16) {
        const __mmask16 mask = FirstLanes(n - i);
        const __m512 normed = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
        store(i, _mm512_mul_ps(normed, _mm512_maskz_loadu_ps(mask, params.norm_weight + i)));
      }
      return;
    }
    case InputTransform::kSiluMul:
      for (int i = 0; i < padded; i += 16) {
        const __mmask16 mask = FirstLanes(n - i);
        const __m512 gate = _mm512_maskz_loadu_ps(mask, x + i);
        const __m512 up = _mm512_maskz_loadu_ps(mask, x + n + i);
        const __m512 exp = Exp(_mm512_sub_ps(_mm512_setzero_ps(), gate));
        store(i, _mm512_mul_ps(_mm512_div_ps(gate, _mm512_add_ps(_mm512_set1_ps(1), exp)), up));
      }
      return;
    case InputTransform::kGeluTanhMul:
      for (int i = 0; i < padded; i += 16) {
        const __mmask16 mask = FirstLanes(n - i);
        const __m512 gate = _mm512_maskz_loadu_ps(mask, x + i);
        const __m512 up = _mm512_maskz_loadu_ps(mask, x + n + i);
        // (1 + tanh(t)) / 2 = 1 / (1 + exp(-2 t)) with t = 0.7978845608 (gate + 0.044715 gate^3)
        const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(gate, gate), gate);
        const __m512 t = _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), cube, gate);
        const __m512 exp = Exp(_mm512_mul_ps(_mm512_set1_ps(-2 * 0.7978845608f), t));
        store(i, _mm512_mul_ps(_mm512_div_ps(gate, _mm512_add_ps(_mm512_set1_ps(1), exp)), up));
      }
      return;
    case InputTransform::kClampedSiluMul:
      for (int i = 0; i < padded; i += 16) {
        const __mmask16 mask = FirstLanes(n - i);
        const __m512 seven = _mm512_set1_ps(7), one = _mm512_set1_ps(1);
        const __m512 gate = _mm512_min_ps(_mm512_maskz_loadu_ps(mask, x + i), seven);
        const __m512 up = _mm512_min_ps(
            _mm512_max_ps(_mm512_maskz_loadu_ps(mask, x + n + i), _mm512_sub_ps(_mm512_setzero_ps(), seven)), seven);
        const __m512 exp = Exp(_mm512_mul_ps(_mm512_set1_ps(-1.702f), gate));
        store(i, _mm512_mul_ps(_mm512_div_ps(gate, _mm512_add_ps(one, exp)), _mm512_add_ps(up, one)));
      }
      return;
  }
}

}  // namespace
}  // namespace winnow::avx512
