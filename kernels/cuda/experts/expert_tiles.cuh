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
namespace winnow::device {

inline constexpr int kTileRows = kExpertTileRows, kTileOutputs = 128, kTileK = 64;
inline constexpr int kTileThreads = 128, kTileStages = 3;
inline constexpr int kTileStageBytes = (kTileRows + kTileOutputs) * kTileK * 2;
inline constexpr int kTileSharedBytes = kTileStages * kTileStageBytes + 128;

// Two blocks of codes of a row, on their way to a stage.
struct TileCodes {
  static constexpr int kBlocks = kTileK / kExpertBlock;
  uint4 block[kBlocks];
  uint32_t factor[kBlocks];

  // Blocks from `first` of the matrices' row that begins with block `row`; zeros behind its end.
  __device__ void Read(const StripProduct& p, int64_t row, int first, bool exists) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const bool is_there = exists && first + i < p.in_features / kExpertBlock;
      const int64_t at = row + (is_there ? first + i : 0);
      block[i] = make_uint4(0, 0, 0, 0);
      if (is_there) block[i] = __ldg(static_cast<const uint4*>(p.weight) + at);
      factor[i] = CodeFactor(__ldg(p.scales + at));
    }
  }
  // To line `line` of the lines at `to`, as bf16.
  __device__ void Store(uint32_t to, int line) const {
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      const uint4& of = block[i / 4];
      const uint32_t word = i % 4 == 0 ? of.x : i % 4 == 1 ? of.y : i % 4 == 2 ? of.z : of.w;
      const uint4 values = CodesOfWord(word, factor[i / 4]);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + line * 128 + ((i ^ (line % 8)) << 4)),
                   "r"(values.x), "r"(values.y), "r"(values.z), "r"(values.w)
                   : "memory");
    }
  }
};

// Grid: tiles of outputs x tiles of pairs that there may be.
template <bool kGated, bool kCodes>
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
  const int64_t first_row = static_cast<int64_t>(tile.expert) * p.matrix_rows;
  const int num_steps = (p.in_features + kTileK - 1) / kTileK;
  // Which output, and which row of the matrices, a line of W in a stage is.
  const auto output = [&](int line) { return kGated ? first_out + line / 64 * 32 + line % 32 : first_out + line; };
  const auto matrix_row = [&](int line) {
    return first_row + min(output(line), p.out_features - 1) + (kGated && line % 64 >= 32 ? p.out_features : 0);
  };
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
    if constexpr (!kCodes) {
#pragma unroll
      for (int i = 0; i < kTileOutputs / 16; ++i) {
        const int line = threadIdx.x / 8 + i * 16, out = output(line);
        const bool exists = out < p.out_features && k < p.in_features;
        const auto* from = static_cast<const __nv_bfloat16*>(p.weight) + matrix_row(line) * p.in_features;
        CopyAsync16(stage + (kTileRows + line) * 128 + ((piece ^ (line % 8)) << 4), from + (exists ? k : 0), exists);
      }
    }
  };
  // Codes go through registers: of a thread's line two blocks of a step, which are read two steps before they are used.
  TileCodes codes;
  const int64_t code_row = matrix_row(threadIdx.x) * (p.in_features / kExpertBlock);
  const auto read_codes = [&](int step) {
    const bool exists = output(threadIdx.x) < p.out_features;
    codes.Read(p, code_row, step * (kTileK / kExpertBlock), exists);
  };
  const auto store_codes = [&](int step) {
    codes.Store(ring + step % kTileStages * kTileStageBytes + kTileRows * 128, threadIdx.x);
  };
  const auto commit = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };
#pragma unroll
  for (int step = 0; step < kTileStages - 1; ++step) {
    if (step < num_steps) copy(step);
    commit();
    if constexpr (kCodes) {
      if (step < num_steps) read_codes(step), store_codes(step);
    }
  }
  float sums[4][8][4] = {};  // of 16 pairs x 8 outputs
  const int warp_row = warp / 2 * 64, warp_out = warp % 2 * 64;
  for (int step = 0; step < num_steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kTileStages - 2) : "memory");
    __syncthreads();
    const int ahead = step + kTileStages - 1;
    if (ahead < num_steps) copy(ahead);
    commit();
    if constexpr (kCodes) {
      if (ahead < num_steps) read_codes(ahead);
    }
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
    if constexpr (kCodes) {
      if (ahead < num_steps) store_codes(ahead);
    }
  }
  if constexpr (kCodes) {
#pragma unroll
    for (int i = 0; i < 4 * 8 * 4; ++i) sums[i / 32][i / 4 % 8][i % 4] *= kCodeSumFactor;
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

}  // namespace winnow::device
