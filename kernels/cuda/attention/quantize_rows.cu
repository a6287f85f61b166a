#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>

#include "common/base/check.h"
#include "kernels/cuda/attention/quantize_rows.cuh"

namespace winnow::device {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxLaneElements = 8;  // of head_dim 256

__device__ float WarpMax(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ float WarpSum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ float RoundToInt4(float x) {
  return fminf(7.0f, fmaxf(-8.0f, rintf(x)));
}

// The values of one half of a row that a warp holds, lane i elements 2i, 2i + 1, 64 + 2i, ... , becomes `out` and the
// scale. `count` elements per lane, of which those behind head_dim are zeros.
struct HalfRow {
  float x[kMaxLaneElements];
  int elements;  // of the half

  __device__ int Element(int i) const { return i / 2 * 64 + static_cast<int>(threadIdx.x % 32) * 2 + i % 2; }
  __device__ bool Has(int i) const { return Element(i) < elements; }
  __device__ float Magnitude() const {  // NaN if an element is not finite
    float largest = 0, spoilt = 0;
#pragma unroll
    for (int i = 0; i < kMaxLaneElements; ++i) {
      largest = fmaxf(largest, fabsf(x[i]));
      if (!isfinite(x[i])) spoilt = 1;
    }
    return WarpMax(spoilt) > 0 ? NAN : WarpMax(largest);
  }

  __device__ float ToFp8(float magnitude, void* out) const {
    const float inverse = 448 / magnitude;
#pragma unroll
    for (int i = 0; i < kMaxLaneElements; i += 2) {
      if (!Has(i)) break;
      static_cast<__nv_fp8x2_e4m3*>(out)[Element(i) / 2] =
          __nv_fp8x2_e4m3(make_float2(x[i] * inverse, x[i + 1] * inverse));
    }
    return magnitude / 448;
  }

  __device__ float ToInt8(float magnitude, void* out) const {
    const float inverse = 127 / magnitude;
#pragma unroll
    for (int i = 0; i < kMaxLaneElements; i += 2) {
      if (!Has(i)) break;
      static_cast<char2*>(out)[Element(i) / 2] =
          make_char2(static_cast<signed char>(__float2int_rn(x[i] * inverse)),
                     static_cast<signed char>(__float2int_rn(x[i + 1] * inverse)));
    }
    return magnitude / 127;
  }

  // Of the steps magnitude / 7, / 8 and / 9 that with the least squared error, and the scale that fits its values best.
  __device__ float ToInt4(float magnitude, void* out) const {
    // The first element of that magnitude goes to the side of -8.
    int first = 2 * elements;
#pragma unroll
    for (int i = kMaxLaneElements - 1; i >= 0; --i) {
      if (Has(i) && fabsf(x[i]) == magnitude) first = 2 * Element(i) + (x[i] > 0 ? 1 : 0);
    }
    first = __reduce_min_sync(~0u, first);
    const float signed_magnitude = first % 2 == 1 ? -magnitude : magnitude;
    const float inverse = 7 / signed_magnitude;
    float best_gain = -1, best_scale = 0, best_factor = 1;
    for (const float factor : {1.0f, 8.0f / 7, 9.0f / 7}) {
      float dot = 0, square = 0;
#pragma unroll
      for (int i = 0; i < kMaxLaneElements; ++i) {
        const float y = x[i] * inverse, value = RoundToInt4(y * factor);
        dot += y * value;
        square += value * value;
      }
      dot = WarpSum(dot);
      square = WarpSum(square);
      if (const float gain = dot / square * dot; gain > best_gain) {
        best_gain = gain;
        best_scale = dot / square;
        best_factor = factor;
      }
    }
#pragma unroll
    for (int i = 0; i < kMaxLaneElements; i += 2) {
      if (!Has(i)) break;
      const int low = static_cast<int>(RoundToInt4(x[i] * inverse * best_factor)) + 8;
      const int high = static_cast<int>(RoundToInt4(x[i + 1] * inverse * best_factor)) + 8;
      static_cast<unsigned char*>(out)[Element(i) / 2] = static_cast<unsigned char>(low | high << 4);
    }
    return best_scale * (signed_magnitude / 7);
  }

  // Zeros of a scale of 0 or NaN.
  __device__ void ToZeros(Dtype to, void* out) const {
#pragma unroll
    for (int i = 0; i < kMaxLaneElements; i += 2) {
      if (!Has(i)) break;
      if (to == Dtype::kI4) {
        static_cast<unsigned char*>(out)[Element(i) / 2] = 0x88;
      } else {
        static_cast<uint16_t*>(out)[Element(i) / 2] = 0;
      }
    }
  }
};

// One warp per half of a row.
__global__ void QuantizeRowsKernel(const __nv_bfloat16* rows, int num_halves, int head_dim, Dtype to,
                                   unsigned char* out, float* scales) {
  const int half = blockIdx.x * kWarps + threadIdx.x / 32;
  if (half >= num_halves) return;
  HalfRow row;
  row.elements = head_dim;
  const __nv_bfloat162* from = reinterpret_cast<const __nv_bfloat162*>(rows + static_cast<size_t>(half) * head_dim);
#pragma unroll
  for (int i = 0; i < kMaxLaneElements; i += 2) {
    const float2 x = row.Has(i) ? __bfloat1622float2(from[row.Element(i) / 2]) : make_float2(0, 0);
    row.x[i] = x.x;
    row.x[i + 1] = x.y;
  }
  unsigned char* to_half = out + static_cast<size_t>(half) * (to == Dtype::kI4 ? head_dim / 2 : head_dim);
  const float magnitude = row.Magnitude();
  float scale;
  if (!(magnitude >= 0x1p-100f)) {
    row.ToZeros(to, to_half);
    scale = isnan(magnitude) ? magnitude : 0;
  } else if (to == Dtype::kF8) {
    scale = row.ToFp8(magnitude, to_half);
  } else if (to == Dtype::kI8) {
    scale = row.ToInt8(magnitude, to_half);
  } else {
    scale = row.ToInt4(magnitude, to_half);
  }
  if (threadIdx.x % 32 == 0) scales[half] = scale;
}

}  // namespace

void QuantizeRows(Stream stream, const void* rows, int num_rows, int head_dim, Dtype to, void* out, void* scales) {
  WINNOW_CHECK(head_dim % 2 == 0 && head_dim <= 32 * kMaxLaneElements);
  if (num_rows == 0) return;
  QuantizeRowsKernel<<<(2 * num_rows + kWarps - 1) / kWarps, kWarps * 32, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(rows), 2 * num_rows, head_dim, to, static_cast<unsigned char*>(out),
      static_cast<float*>(scales));
}

}  // namespace winnow::device
