#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/experts/expert_codes.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/step/activation.cuh"
#include "kernels/device/params/experts.h"

// Products of few rows with each of the experts that they touch, bound by reading those once. A block takes a strip of
// an expert's outputs, and all rows that go there; its warps share out k. Weights go straight to registers: a lane
// takes 16 bytes of a row of W, which are four of its operands of two mma, of codes of eight, as the order in k is free
// as long as rows of x have the same. So nothing waits but for memory, and no barrier is met but the last.
namespace winnow::device {

inline constexpr int kStripWarps = 4, kStripThreads = 32 * kStripWarps;
inline constexpr int kStripOutputs = 32;  // two mma tiles: 16 of gate and 16 of up, or 32 of down

// A product of the pairs of each expert. Matrices [rows, in_features] lie one after the other.
struct StripProduct {
  const void* weight;
  const uint8_t* scales;  // of codes (expert_codes.h)
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
__device__ inline uint4 LoadOnce(const uint8_t* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// The rows of W of a lane's operands, for 32 bytes of it and its neighbours at a time: 16 bytes of bf16, of which there
// are 8, or a block of codes.
template <bool kCodes>
struct StripRows {
  static constexpr int kPiece = kCodes ? kExpertBlock : 8;
  static constexpr int kStep = 4 * kPiece;  // of the four lanes of a row

  __device__ StripRows(const StripProduct& p, uint32_t expert, int strip, bool gated) {
    const int line = threadIdx.x % 32 / 4, in = p.in_features;
    const int64_t first = static_cast<int64_t>(expert) * p.matrix_rows;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int out = min(strip + (gated ? 0 : tile * 16) + half * 8 + line, p.out_features - 1);
        const int64_t row = first + out + (gated ? tile * p.out_features : 0);
        weights[tile][half] = static_cast<const uint8_t*>(p.weight) + (kCodes ? row * in / 2 : row * in * 2);
        if (kCodes) scales[tile][half] = p.scales + row * in / kExpertBlock;
      }
    }
  }
  __device__ uint4 Weights(int tile, int half, int at) const {
    return LoadOnce(weights[tile][half] + (kCodes ? at / 2 : at * 2));
  }
  __device__ uint32_t Factor(int tile, int half, int at) const {
    return CodeFactor(__ldg(scales[tile][half] + at / kExpertBlock));
  }

  const uint8_t* weights[2][2];
  const uint8_t* scales[2][2];
};

// Adds the products of a lane's operands of one step: bf16, with those of x, or codes, with x itself at `at`.
template <int kGroups>
__device__ void MultiplyStep(const uint4 (&a)[2][2], const uint4 (&b)[kGroups], float (&part)[2][kGroups][4]) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint4 &low = a[tile][0], &high = a[tile][1];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      MultiplyAccumulate(part[tile][group], {low.x, high.x, low.y, high.y}, b[group].x, b[group].y);
      MultiplyAccumulate(part[tile][group], {low.z, high.z, low.w, high.w}, b[group].z, b[group].w);
    }
  }
}
template <int kGroups>
__device__ void MultiplyCodes(const uint4 (&codes)[2][2], const uint32_t (&factors)[2][2],
                              const __nv_bfloat16* const (&x)[kGroups], int at, bool exists,
                              float (&part)[2][kGroups][4]) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    uint4 a[2][2], b[kGroups];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4& block = codes[tile][half];
        const uint32_t of_word = word == 0 ? block.x : word == 1 ? block.y : word == 2 ? block.z : block.w;
        a[tile][half] = CodesOfWord(of_word, factors[tile][half]);
      }
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      b[group] = exists ? *reinterpret_cast<const uint4*>(x[group] + at + word * 8) : make_uint4(0, 0, 0, 0);
    }
    MultiplyStep(a, b, part);
  }
}

// A strip for up to 8 * kGroups pairs from `first` on. `sums` is shared memory for kStripWarps * kGroups * 256 floats.
template <int kGroups, bool kGated, bool kCodes>
__device__ void StripOfPairs(const StripProduct& p, const RoutedRows& routed, uint32_t expert, uint32_t first,
                             uint32_t count, float* sums) {
  // Steps in k whose loads are under way together; of bf16 in twos, which share the lines of a row of W.
  constexpr int kAhead = kCodes ? (kGroups == 1 ? 3 : 2) : kGroups == 1 ? 8 : kGroups == 2 ? 4 : 2;
  using Rows = StripRows<kCodes>;
  constexpr int kStep = Rows::kStep, kTogether = kCodes ? 1 : 2;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, piece = lane % 4 * Rows::kPiece;
  const int strip = blockIdx.x * (kGated ? kStripOutputs / 2 : kStripOutputs);
  const Rows w(p, expert, strip, kGated);
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
    uint4 a[kAhead][2][2];
    uint32_t factors[kAhead][2][2];
#pragma unroll
    for (int two = 0; two < kAhead; two += kTogether) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = two; i < two + kTogether; ++i) {
            const int at = k + i * kStep + piece;
            a[i][tile][half] = at < end ? w.Weights(tile, half, at) : make_uint4(0, 0, 0, 0);
            if (kCodes) factors[i][tile][half] = at < end ? w.Factor(tile, half, at) : 0;
          }
        }
      }
    }
    if constexpr (kCodes) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int at = k + i * kStep + piece;
        MultiplyCodes(a[i], factors[i], x, at, at < end, part);
      }
    } else {
      uint4 b[kAhead][kGroups];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int at = k + i * kStep + piece;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          b[i][group] = at < end ? *reinterpret_cast<const uint4*>(x[group] + at) : make_uint4(0, 0, 0, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) MultiplyStep(a[i], b[i], part);
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
      if (kCodes) total[tile] *= kCodeSumFactor;
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
template <int kGroups, bool kGated, bool kCodes>
__global__ void __launch_bounds__(kStripThreads, 3) ExpertStripKernel(const StripProduct p, const RoutedRows routed) {
  __shared__ __align__(16) float sums[kStripWarps * kGroups * 256];
  WaitForInputs();
  LetDependentsStart();
  const uint4 of = reinterpret_cast<const uint4*>(routed.active)[blockIdx.y];  // ExpertPairs
  const uint32_t expert = of.x, end = of.y + of.z;
  for (uint32_t first = of.y; first < end;) {
    const uint32_t left = end - first;
    if (kGroups >= 4 && left > 16) {
      StripOfPairs<std::min(kGroups, 4), kGated, kCodes>(p, routed, expert, first, min(left, 32u), sums);
      first += 32;
    } else if (kGroups >= 2 && left > 8) {
      StripOfPairs<std::min(kGroups, 2), kGated, kCodes>(p, routed, expert, first, min(left, 16u), sums);
      first += 16;
    } else {
      StripOfPairs<1, kGated, kCodes>(p, routed, expert, first, min(left, 8u), sums);
      first += 8;
    }
    __syncthreads();  // sums are used again
  }
}

}  // namespace winnow::device
