#pragma once
#include "kernels/cpu/avx2/vector.h"

// As avx512/panel.h, for 16 registers: few rows take many outputs at a time, many rows take 16.

namespace winnow::avx2 {
namespace {

inline constexpr int kTileRows = 6;

// acc[r][0 .. 8 * kVectors) = (resume ? acc : 0) + sum_k x[r][k] * w[k][..], k ascending.
template <int kRows, int kVectors, Dtype kDtype>
inline __attribute__((always_inline)) void PanelTile(const float* x, int64_t x_stride, const void* w, int64_t w_stride,
                                                     int num_k, float* acc, int64_t acc_stride, bool resume) {
  __m256 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = resume ? _mm256_loadu_ps(acc + r * acc_stride + 8 * v) : _mm256_setzero_ps();
    }
  }
  const auto add = [&](int k, int v, __m256 weight) {
    for (int r = 0; r < kRows; ++r) {
      sum[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + r * x_stride + k), weight, sum[r][v]);
    }
  };
  if constexpr (kDtype == Dtype::kF32) {
    const float* row = static_cast<const float*>(w);
    for (int k = 0; k < num_k; ++k, row += w_stride) {
      for (int v = 0; v < kVectors; ++v) add(k, v, _mm256_loadu_ps(row + 8 * v));
    }
  } else {
    const uint32_t* row = static_cast<const uint32_t*>(w);
    for (int k = 0; k < num_k; k += 2, row += w_stride) {
      for (int v = 0; v < kVectors; ++v) {
        const __m256i pairs = LoadPairs(row + 8 * v);
        add(k, v, EvenOf(pairs));
        add(k + 1, v, OddOf(pairs));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(acc + r * acc_stride + 8 * v, sum[r][v]);
  }
}

// kRows rows by `width` outputs, a multiple of 32.
template <int kRows, Dtype kDtype>
void PanelWidth(const float* x, int64_t x_stride, const void* w, int width, int num_k, float* acc, int64_t acc_stride,
                bool resume) {
  constexpr int kVectors = kRows <= 3 ? 4 : 2;
  constexpr int kOutputBytes = 4;  // an f32 weight, or a pair of bf16
  for (int column = 0; column < width; column += 8 * kVectors) {
    PanelTile<kRows, kVectors, kDtype>(x, x_stride, static_cast<const char*>(w) + column * kOutputBytes, width, num_k,
                                       acc + column, acc_stride, resume);
  }
}

template <Dtype kDtype>
void PanelRows(const float* x, int64_t x_stride, int num_rows, const void* w, int width, int num_k, float* acc,
               int64_t acc_stride, bool resume) {
  for (; num_rows >= kTileRows; num_rows -= kTileRows, x += kTileRows * x_stride, acc += kTileRows * acc_stride) {
    PanelWidth<kTileRows, kDtype>(x, x_stride, w, width, num_k, acc, acc_stride, resume);
  }
  switch (num_rows) {
    case 5:
      return PanelWidth<5, kDtype>(x, x_stride, w, width, num_k, acc, acc_stride, resume);
    case 4:
      return PanelWidth<4, kDtype>(x, x_stride, w, width, num_k, acc, acc_stride, resume);
    case 3:
      return PanelWidth<3, kDtype>(x, x_stride, w, width, num_k, acc, acc_stride, resume);
    case 2:
      return PanelWidth<2, kDtype>(x, x_stride, w, width, num_k, acc, acc_stride, resume);
    case 1:
      return PanelWidth<1, kDtype>(x, x_stride, w, width, num_k, acc, acc_stride, resume);
    default:
      return;
  }
}

}  // namespace
}  // namespace winnow::avx2
