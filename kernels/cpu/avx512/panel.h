#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx512/vector.h"

// The register tile behind every AVX-512 product: up to 6 rows by up to 64 outputs in f32 FMA. With 6 x 4 accumulators,
// a step of k takes 24 FMA (12 cycles on two ports) for 4 weight and 6 broadcast loads (5 cycles).
//
// bf16 weights are widened in registers (two instructions per 32 weights, shared by the rows). On Intel cores without
// AMX this is twice as fast as vdpbf16ps, which runs at a quarter of the FMA rate there, and products are exact.

namespace winnow::avx512 {
namespace {

inline constexpr int kTileRows = 6;

// acc[r][0 .. 16 * kVectors) = (resume ? acc : 0) + sum_k x[r][k] * w[k][..], k ascending. bf16: w is
// [num_k/2][stride][2]; f32: [num_k][stride]; w_stride in outputs. One row takes weights as fast as memory delivers
// them, and asks for them into the second-level cache, which has more requests under way than the first.
template <int kRows, int kVectors, Dtype kDtype>
inline __attribute__((always_inline)) void PanelTile(const float* x, int64_t x_stride, const void* w, int64_t w_stride,
                                                     int num_k, float* acc, int64_t acc_stride, bool resume) {
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = resume ? _mm512_loadu_ps(acc + r * acc_stride + 16 * v) : _mm512_setzero_ps();
    }
  }
  if constexpr (kDtype == Dtype::kF32) {
    const float* row = static_cast<const float*>(w);
    for (int k = 0; k < num_k; ++k, row += w_stride) {
      if constexpr (kRows == 1) _mm_prefetch(reinterpret_cast<const char*>(row) + 2048, _MM_HINT_T1);
      __m512 weight[kVectors];
      for (int v = 0; v < kVectors; ++v) weight[v] = _mm512_loadu_ps(row + 16 * v);
      for (int r = 0; r < kRows; ++r) {
        const __m512 value = _mm512_set1_ps(x[r * x_stride + k]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(value, weight[v], sum[r][v]);
      }
    }
  } else {
    const uint32_t* row = static_cast<const uint32_t*>(w);
    for (int k = 0; k < num_k; k += 2, row += w_stride) {
      __m512 weight[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(row + 16 * v) + 2048, kRows == 1 ? _MM_HINT_T1 : _MM_HINT_T0);
        weight[v] = EvenOf(_mm512_loadu_si512(row + 16 * v));
      }
      for (int r = 0; r < kRows; ++r) {
        const __m512 value = _mm512_set1_ps(x[r * x_stride + k]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(value, weight[v], sum[r][v]);
      }
      for (int v = 0; v < kVectors; ++v) weight[v] = OddOf(_mm512_loadu_si512(row + 16 * v));
      for (int r = 0; r < kRows; ++r) {
        const __m512 value = _mm512_set1_ps(x[r * x_stride + k + 1]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(value, weight[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(acc + r * acc_stride + 16 * v, sum[r][v]);
  }
}

// The same for any number of rows.
template <int kVectors, Dtype kDtype>
void PanelRows(const float* x, int64_t x_stride, int num_rows, const void* w, int64_t w_stride, int num_k, float* acc,
               int64_t acc_stride, bool resume) {
  for (; num_rows >= kTileRows; num_rows -= kTileRows, x += kTileRows * x_stride, acc += kTileRows * acc_stride) {
    PanelTile<kTileRows, kVectors, kDtype>(x, x_stride, w, w_stride, num_k, acc, acc_stride, resume);
  }
  switch (num_rows) {
    case 5:
      return PanelTile<5, kVectors, kDtype>(x, x_stride, w, w_stride, num_k, acc, acc_stride, resume);
    case 4:
      return PanelTile<4, kVectors, kDtype>(x, x_stride, w, w_stride, num_k, acc, acc_stride, resume);
    case 3:
      return PanelTile<3, kVectors, kDtype>(x, x_stride, w, w_stride, num_k, acc, acc_stride, resume);
    case 2:
      return PanelTile<2, kVectors, kDtype>(x, x_stride, w, w_stride, num_k, acc, acc_stride, resume);
    case 1:
      return PanelTile<1, kVectors, kDtype>(x, x_stride, w, w_stride, num_k, acc, acc_stride, resume);
    default:
      return;
  }
}

}  // namespace
}  // namespace winnow::avx512
