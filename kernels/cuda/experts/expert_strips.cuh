#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/experts/expert_codes.cuh"
#include "kernels/cuda/experts/strip_pipeline.cuh"
#include "kernels/cuda/step/activation.cuh"
#include "kernels/device/params/experts.h"

// Products of few rows with each of the experts that they touch, bound by reading those once. A block takes a strip of
// an expert's outputs, and all rows that go there; its warps share out k. Weights go straight to registers: a lane
// takes 16 bytes of a row of W, which are four of its operands of two mma, of codes of eight, as the order in k is free
// as long as rows of x have the same. So nothing waits but for memory, and no barrier is met but the last.
namespace winnow::device {

// A strip for up to 8 * kGroups pairs from `first` on, whose weights are under way when on_inputs is called. `sums` is
// shared memory for kStripWarps * kGroups * 256 floats.
template <int kGroups, bool kGated, bool kCodes, int kBlocks, typename OnInputs>
__device__ void StripOfPairs(const StripProduct& p, const RoutedRows& routed, uint32_t expert, uint32_t first,
                             uint32_t count, float* sums, const OnInputs& on_inputs) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4;
  const int strip = blockIdx.x * (kGated ? kStripOutputs / 2 : kStripOutputs);
  StripPipeline<kGroups, kCodes, kBlocks> pipeline(p, expert, strip, kGated);
  // What a thread writes in the end: lane l of a warp has outputs l / 4 and 8 behind it of a tile, of pairs 2 * (l % 4)
  // and the next. All that it needs for them is under way, too.
  const int of_tile = threadIdx.x / 4 % 32 / 4 + threadIdx.x % 4 / 2 * 8,
            of_group = threadIdx.x / 4 % 4 * 2 + threadIdx.x % 2;
  const int outs[2] = {strip + of_tile, kGated ? strip + of_tile : strip + 16 + of_tile};
  float biases[2];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int row = min(outs[tile], p.out_features - 1) + (kGated && tile == 1 ? p.out_features : 0);
    biases[tile] = BiasOf(p, expert, row);
  }
  float weights[kGroups];
  if constexpr (!kGated) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      weights[group] = __ldcg(routed.weights + first + min(static_cast<uint32_t>(group * 8 + of_group), count - 1));
    }
  }
  on_inputs();
  const __nv_bfloat16* x[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t pair = first + min(static_cast<uint32_t>(group * 8 + line), count - 1);
    x[group] = p.x + static_cast<int64_t>(p.x_by_row ? routed.rows[pair] : pair) * p.in_features;
  }
  float part[2][kGroups][4] = {};
  pipeline.Multiply(x, part);
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
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t pair = group * 8 + of_group;
    if (pair >= count) break;
    float total[2] = {};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int w = 0; w < kStripWarps; ++w) {
        total[tile] += sums[(w * kOfWarp + tile * kOfTile) * 4 + group * kStripThreads + threadIdx.x];
      }
      total[tile] = (kCodes ? total[tile] * kCodeSumFactor : total[tile]) + biases[tile];
    }
    const int64_t row = static_cast<int64_t>(first + pair) * p.out_features;
    if constexpr (kGated) {
      if (outs[0] >= p.out_features) continue;
      const float value = Activate(p.activation, total[0], total[1]);
      static_cast<__nv_bfloat16*>(p.out)[row + outs[0]] = __float2bfloat16(value);
    } else {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        if (outs[tile] < p.out_features) static_cast<float*>(p.out)[row + outs[tile]] = weights[group] * total[tile];
      }
    }
  }
}

// Grid: strips x the experts that may be active. kGroups: enough for all pairs that an expert can have, or 4 of them
// at a time. kBlocks: of a multiprocessor, at most; blocks that all run at once are then shared out evenly, too. The
// product of down is launched behind that of gate and up, whose blocks wait for the routing before they let others
// start: it knows of its experts at once, and reads weights while those still run.
template <int kGroups, bool kGated, bool kCodes, int kBlocks>
__global__ void __launch_bounds__(kStripThreads, kBlocks)
    ExpertStripKernel(const StripProduct p, const RoutedRows routed) {
  __shared__ __align__(16) float sums[kStripWarps * kGroups * 256];
  bool waits = true;
  const auto on_inputs = [&] {
    if (!waits) return;
    waits = false;
    WaitForInputs();
    LetDependentsStart();
  };
  if (kGated) on_inputs();
  const uint4 of = __ldcg(reinterpret_cast<const uint4*>(routed.active) + blockIdx.y);  // ExpertPairs
  const uint32_t expert = of.x, end = of.y + of.z;
  for (uint32_t first = of.y; first < end;) {
    const uint32_t left = end - first;
    if (kGroups >= 4 && left > 16) {
      StripOfPairs<std::min(kGroups, 4), kGated, kCodes, kBlocks>(p, routed, expert, first, min(left, 32u), sums,
                                                                  on_inputs);
      first += 32;
    } else if (kGroups >= 2 && left > 8) {
      StripOfPairs<std::min(kGroups, 2), kGated, kCodes, kBlocks>(p, routed, expert, first, min(left, 16u), sums,
                                                                  on_inputs);
      first += 16;
    } else {
      StripOfPairs<1, kGated, kCodes, kBlocks>(p, routed, expert, first, min(left, 8u), sums, on_inputs);
      first += 8;
    }
    __syncthreads();  // sums are used again
  }
  on_inputs();
}

}  // namespace winnow::device
