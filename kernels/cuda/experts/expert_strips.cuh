#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/step/activation.cuh"

// Products of few rows with each of the experts that they touch, bound by reading those once. A block takes a strip of
// an expert's outputs, and all rows that go there; its warps share out k. Weights go straight to registers: a lane
// takes 16 bytes of a row of W, which are four of its operands of two mma, as the order in k is free as long as rows of
// x have the same. So nothing waits but for memory, and no barrier is met but the last.
namespace winnow::cuda {

inline constexpr int kStripWarps = 4, kStripThreads = 32 * kStripWarps;
inline constexpr int kStripOutputs = 32;  // two mma tiles: 16 of gate and 16 of up, or 32 of down

// A product of the pairs of each expert. Matrices [rows, in_features] lie one after the other.
struct StripProduct {
  const __nv_bfloat16* weight;
  int64_t matrix_elements;  // of an expert's
  int matrix_rows;
  int in_features;
  int out_features;   // that come out: of gate and up one half
  const float* bias;  // [experts][matrix_rows]; may be null
  GatedActivation activation;
  const __nv_bfloat16* x;
  bool x_by_row;  // rows of x are those of the pairs; otherwise there is one for each pair
  void* out;      // bf16 of gated ones, else f32
};

// What is added to the sum of a row of an expert's matrix: of gate and up, rows of up lie behind those of gate.
__device__ inline float BiasOf(const StripProduct& p, uint32_t expert, int row) {
  return p.bias == nullptr ? 0.0f : p.bias[static_cast<int64_t>(expert) * p.matrix_rows + row];
}

// Weights are read once a step: they take no place in the L1.
__device__ inline uint4 LoadOnce(const __nv_bfloat16* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// A strip for up to 8 * kGroups pairs from `first` on. `sums` is shared memory for kStripWarps * kGroups * 256 floats.
template <int kGroups, bool kGated>
__device__ void StripOfPairs(const StripProduct& p, const RoutedRows& routed, uint32_t expert, uint32_t first,
                             uint32_t count, float* sums) {
  // Steps in k whose loads are under way together, in twos, which share the lines of a row of W.
  constexpr int kAhead = kGroups == 1 ? 8 : kGroups == 2 ? 4 : 2;
  constexpr int kStep = 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, piece = lane % 4 * 8;
  const int strip = blockIdx.x * (kGated ? kStripOutputs / 2 : kStripOutputs);
  const __nv_bfloat16* const matrix = p.weight + expert * p.matrix_elements;
  const __nv_bfloat16* w[2][2];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int out = min(strip + (kGated ? 0 : tile * 16) + half * 8 + line, p.out_features - 1);
      w[tile][half] = matrix + static_cast<int64_t>(out + (kGated ? tile * p.out_features : 0)) * p.in_features;
    }
  }
  const __nv_bfloat16* x[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t pair = first + min(static_cast<uint32_t>(group * 8 + line), count - 1);
    x[group] = p.x + static_cast<int64_t>(p.x_by_row ? routed.rows[pair] : pair) * p.in_features;
  }
  const int of_warp = (p.in_features + kStep * kStripWarps - 1) / (kStep * kStripWarps) * kStep;
  const int begin = warp * of_warp, end = min(begin + of_warp, p.in_features);
  float part[2][kGroups][4] = {};
  for (int k = begin; k < end; k += kAhead * kStep) {
    uint4 a[kAhead][2][2], b[kAhead][kGroups];
#pragma unroll
    for (int two = 0; two < kAhead; two += 2) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = two; i < two + 2; ++i) {
            const int at = k + i * kStep + piece;
            a[i][tile][half] = at < end ? LoadOnce(w[tile][half] + at) : make_uint4(0, 0, 0, 0);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = k + i * kStep + piece;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        b[i][group] = at < end ? *reinterpret_cast<const uint4*>(x[group] + at) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint4 &low = a[i][tile][0], &high = a[i][tile][1];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          MultiplyAccumulate(part[tile][group], {low.x, high.x, low.y, high.y}, b[i][group].x, b[i][group].y);
          MultiplyAccumulate(part[tile][group], {low.z, high.z, low.w, high.w}, b[i][group].z, b[i][group].w);
        }
      }
    }
  }
  // [warp][tile][group][lane][4]
  constexpr int kOfTile = kGroups * 32, kOfWarp = 2 * kOfTile;
  float4* const all = reinterpret_cast<float4*>(sums);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float(&v)[4] = part[tile][group];
      all[warp * kOfWarp + tile * kOfTile + group * 32 + lane] = make_float4(v[0], v[1], v[2], v[3]);
    }
  }
  __syncthreads();
  // An element of a tile: lane l has outputs l / 4 and 8 behind it, of pairs 2 * (l % 4) and the next.
  for (int element = threadIdx.x; element < kOfTile * 4; element += kStripThreads) {
    const int word = element % 4, of = element / 4 % 32, group = element / 128;
    const int out = of / 4 + word / 2 * 8, pair = group * 8 + of % 4 * 2 + word % 2;
    if (pair >= count) continue;
    float total[2] = {};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int w = 0; w < kStripWarps; ++w) total[tile] += sums[(w * kOfWarp + tile * kOfTile) * 4 + element];
    }
    const int64_t row = static_cast<int64_t>(first + pair) * p.out_features;
    if constexpr (kGated) {
      if (strip + out >= p.out_features) continue;
      const float gate = total[0] + BiasOf(p, expert, strip + out);
      const float up = total[1] + BiasOf(p, expert, p.out_features + strip + out);
      static_cast<__nv_bfloat16*>(p.out)[row + strip + out] = __float2bfloat16(Activate(p.activation, gate, up));
    } else {
      const float weight = routed.weights[first + pair];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int at = strip + tile * 16 + out;
        if (at >= p.out_features) continue;
        static_cast<float*>(p.out)[row + at] = weight * (total[tile] + BiasOf(p, expert, at));
      }
    }
  }
}

// Grid: strips x the experts that may be active. kGroups: enough for all pairs that an expert can have, or 4 of them
// at a time.
template <int kGroups, bool kGated>
__global__ void __launch_bounds__(kStripThreads, 3) ExpertStripKernel(const StripProduct p, const RoutedRows routed) {
  __shared__ __align__(16) float sums[kStripWarps * kGroups * 256];
  WaitForInputs();
  LetDependentsStart();
  const uint4 of = reinterpret_cast<const uint4*>(routed.active)[blockIdx.y];  // ExpertPairs
  const uint32_t expert = of.x, end = of.y + of.z;
  for (uint32_t first = of.y; first < end;) {
    const uint32_t left = end - first;
    if (kGroups >= 4 && left > 16) {
      StripOfPairs<std::min(kGroups, 4), kGated>(p, routed, expert, first, min(left, 32u), sums);
      first += 32;
    } else if (kGroups >= 2 && left > 8) {
      StripOfPairs<std::min(kGroups, 2), kGated>(p, routed, expert, first, min(left, 16u), sums);
      first += 16;
    } else {
      StripOfPairs<1, kGated>(p, routed, expert, first, min(left, 8u), sums);
      first += 8;
    }
    __syncthreads();  // sums are used again
  }
}

}  // namespace winnow::cuda
