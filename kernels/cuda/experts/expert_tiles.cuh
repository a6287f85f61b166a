#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/experts/expert_strips.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"

// Products of a prompt's rows with their experts, bound by arithmetic: tiles of 128 pairs of one expert by 128 outputs,
// 64 of k at a time, through a ring in shared memory. Four warps take 64 x 64 each. Rows of x are gathered by the
// copies, so that nobody writes them in the order of the experts first.
namespace winnow::cuda {

inline constexpr int kTileRows = kExpertTileRows, kTileOutputs = 128, kTileK = 64;
inline constexpr int kTileThreads = 128, kTileStages = 3;
inline constexpr int kTileStageBytes = (kTileRows + kTileOutputs) * kTileK * 2;
inline constexpr int kTileSharedBytes = kTileStages * kTileStageBytes + 128;

// Grid: tiles of outputs x tiles of pairs that there may be.
template <bool kGated>
__global__ void __launch_bounds__(kTileThreads, 2) ExpertTileKernel(const StripProduct p, const RoutedRows routed) {
  extern __shared__ __align__(128) uint8_t ring_memory[];
  __shared__ uint32_t x_rows[kTileRows];
  WaitForInputs();
  LetDependentsStart();
  if (blockIdx.y >= *routed.num_tiles) return;
  const ExpertTile tile = routed.tiles[blockIdx.y];
  const int count = static_cast<int>(min(routed.first[tile.expert + 1] - tile.first, uint32_t{kTileRows}));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Gate and up of 64 outputs, in turns of 32, so that a warp has both of each of its own; or 128 of down.
  const int first_out = blockIdx.x * (kGated ? kTileOutputs / 2 : kTileOutputs);
  const uint32_t ring = (SharedAddress(ring_memory) + 127) / 128 * 128;
  {
    const uint32_t pair = tile.first + min(static_cast<int>(threadIdx.x), count - 1);
    x_rows[threadIdx.x] = p.x_by_row ? routed.rows[pair] : pair;
  }
  __syncthreads();
  const __nv_bfloat16* const matrix = p.weight + tile.expert * p.matrix_elements;
  const int num_steps = (p.in_features + kTileK - 1) / kTileK;
  const auto copy = [&](int step) {
    const uint32_t stage = ring + step % kTileStages * kTileStageBytes;
    const int piece = threadIdx.x % 8, k = step * kTileK + piece * 8;
#pragma unroll
    for (int i = 0; i < kTileRows / 16; ++i) {
      const int row = threadIdx.x / 8 + i * 16;
      const bool exists = row < count && k < p.in_features;
      const __nv_bfloat16* from = p.x + static_cast<int64_t>(x_rows[row]) * p.in_features + (exists ? k : 0);
      CopyAsync16(stage + row * 128 + ((piece ^ (row % 8)) << 4), from, exists);
    }
#pragma unroll
    for (int i = 0; i < kTileOutputs / 16; ++i) {
      const int line = threadIdx.x / 8 + i * 16;
      const int out = kGated ? first_out + line / 64 * 32 + line % 32 : first_out + line;
      const bool exists = out < p.out_features && k < p.in_features;
      const int row = min(out, p.out_features - 1) + (kGated && line % 64 >= 32 ? p.out_features : 0);
      const __nv_bfloat16* from = matrix + static_cast<int64_t>(row) * p.in_features + (exists ? k : 0);
      CopyAsync16(stage + (kTileRows + line) * 128 + ((piece ^ (line % 8)) << 4), from, exists);
    }
  };
  const auto commit = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };
#pragma unroll
  for (int step = 0; step < kTileStages - 1; ++step) {
    if (step < num_steps) copy(step);
    commit();
  }
  float sums[4][8][4] = {};  // of 16 pairs x 8 outputs
  const int warp_row = warp / 2 * 64, warp_out = warp % 2 * 64;
  for (int step = 0; step < num_steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kTileStages - 2) : "memory");
    __syncthreads();
    if (step + kTileStages - 1 < num_steps) copy(step + kTileStages - 1);
    commit();
    const uint32_t stage = ring + step % kTileStages * kTileStageBytes;
#pragma unroll
    for (int k16 = 0; k16 < kTileK / 16; ++k16) {
      uint32_t a[4][4], b[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp_row + i * 16 + lane % 16;
        LoadMatrices(a[i], stage + row * 128 + (((k16 * 2 + lane / 16) ^ (row % 8)) << 4));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Matrices: outputs 0-7 of both halves of k, then outputs 8-15.
        const int line = kTileRows + warp_out + i * 16 + lane / 16 * 8 + lane % 8;
        LoadMatrices(b[i], stage + line * 128 + (((k16 * 2 + lane / 8 % 2) ^ (line % 8)) << 4));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) MultiplyAccumulate(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = warp_row + i * 16 + half * 8 + lane / 4;
      if (at >= count) continue;
      const int64_t pair = tile.first + at;
      if constexpr (kGated) {
        auto* const out = static_cast<__nv_bfloat16*>(p.out) + pair * p.out_features;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int column = first_out + warp_out / 2 + j * 8 + lane % 4 * 2;
          if (column >= p.out_features) continue;  // widths are even
          float value[2];
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const float gate = sums[i][j][half * 2 + odd] + BiasOf(p, tile.expert, column + odd);
            const float up = sums[i][j + 4][half * 2 + odd] + BiasOf(p, tile.expert, p.out_features + column + odd);
            value[odd] = Activate(p.activation, gate, up);
          }
          *reinterpret_cast<uint32_t*>(out + column) = PackBf16(value[0], value[1]);
        }
      } else {
        const float weight = routed.weights[pair];
        auto* const out = static_cast<float*>(p.out) + pair * p.out_features;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int column = first_out + warp_out + j * 8 + lane % 4 * 2;
          if (column >= p.out_features) continue;
          *reinterpret_cast<float2*>(out + column) =
              make_float2(weight * (sums[i][j][half * 2] + BiasOf(p, tile.expert, column)),
                          weight * (sums[i][j][half * 2 + 1] + BiasOf(p, tile.expert, column + 1)));
        }
      }
    }
  }
}

}  // namespace winnow::cuda
