#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/matmul_fill.cuh"
#include "kernels/cuda/matmul_mma.cuh"
#include "kernels/cuda/summands.cuh"

// y = x W^T for up to 64 rows of x, bound by reading W once. Each block has a warp that fills a ring with boxes of W
// and x, four warps that multiply 16 output features each, and four that finish the tiles which blocks share: the last
// part of a tile to come sums them all in the order of k. Row invariance: cuts depend on the shape of W alone, and
// columns of an mma (rows of x) are independent.
namespace winnow::cuda {

// Of 16 output features and kRows rows, as mma leaves them in the lanes of a warp.
template <int kRows>
struct StripSums {
  float values[kRows / 8][4];
};

template <int kRows>
__device__ inline void WriteStrip(const DecodeMatmulArgs& args, int tile, int strip, const StripSums<kRows>& sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int out = tile * kTileOut + strip * 16 + half * 8 + lane / 4;
    if (out >= args.out_features) continue;
    const float scale = args.scales != nullptr ? args.scales[out] : 1.0f;
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = column * 8 + lane % 4 * 2 + odd;
        if (row >= args.num_rows) continue;
        const float value = __fmul_rn(sums.values[column][half * 2 + odd], scale);
        const int64_t at = row * args.y_stride + out;
        if (args.summand.num_ranks > 0) {
          StoreSummand(args.summand, at, value);
        } else if (args.y_is_bf16) {
          static_cast<__nv_bfloat16*>(args.y)[at] = __float2bfloat16(value);
        } else {
          float* y = static_cast<float*>(args.y) + at;
          *y = args.accumulate ? *y + value : value;
        }
      }
    }
  }
}

template <int kRows>
__device__ inline float4* PartOf(const DecodeMatmulArgs& args, int slot, int strip) {
  return args.partials + (int64_t{slot} * kMultiplyWarps + strip) * (kRows / 8 * 32) + threadIdx.x % 32;
}

// One of the warps that multiply.
template <int kRows, bool kF8>
class StripMultiplier {
  using Layout = DecodeLayout<kRows, kF8>;
  using Shared = DecodeShared<Layout::kStages>;

 public:
  __device__ StripMultiplier(const DecodeMatmulArgs& args, Shared& shared, uint32_t ring, int strip)
      : args_(args), shared_(shared), ring_(ring), strip_(strip), lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    StripSums<kRows> sums = {};
    RingPlace<Layout::kStages> place;
    while (true) {
      WaitBarrier(SharedAddress(&shared_.full[place.index]), place.parity);
      const UnitTask task = shared_.tasks[place.index];
      if (task.tile < 0) break;
      Multiply(sums, ring_ + place.index * Layout::kStageBytes);
      __syncwarp();
      if (lane_ == 0) ArriveBarrier(SharedAddress(&shared_.empty[place.index]));
      place.Advance();
      if (task.then == kGoOn) continue;
      if (task.then == kWriteWhole) {
        WriteStrip<kRows>(args_, task.tile, strip_, sums);
      } else {
        float4* part = PartOf<kRows>(args_, task.then, strip_);
#pragma unroll
        for (int column = 0; column < kRows / 8; ++column) {
          const float(&v)[4] = sums.values[column];
          __stcg(part + column * 32, make_float4(v[0], v[1], v[2], v[3]));
        }
        HandOver(task.tile);
      }
      sums = {};
    }
    HandOver(-1);
  }

 private:
  __device__ void HandOver(int tile) {
    WaitBarrier(SharedAddress(&shared_.part_empty[strip_][queue_.index]), queue_.parity ^ 1);
    if (lane_ == 0) shared_.part_tiles[strip_][queue_.index] = tile;
    __syncwarp();
    if (lane_ == 0) ArriveBarrier(SharedAddress(&shared_.part_full[strip_][queue_.index]));
    queue_.Advance();
  }

  __device__ void Multiply(StripSums<kRows>& sums, uint32_t weights) const {
    // The swizzle: which piece of its row a lane reads, but for bits that the step in k flips.
    const uint32_t weight_lane = weights + (strip_ * 16 + lane_ % 16) * 128;
    const uint32_t weight_piece = ((lane_ / 16) ^ (lane_ % 8)) * 16;
    const uint32_t row_lane = weights + Layout::kWeightBytes + lane_ % 8 * 128;
    const uint32_t row_piece = ((lane_ / 8) ^ (lane_ % 8)) * 16;
#pragma unroll
    for (int k32 = 0; k32 < Layout::kChunkK / 32; ++k32) {
      const uint32_t box = weight_lane + k32 / (kF8 ? 4 : 2) * Layout::kWeightBoxBytes;
      uint32_t a[2][4];
      if constexpr (kF8) {
        uint32_t bytes[4];
        LoadMatrices(bytes, box + (weight_piece ^ (k32 % 4 * 32)));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          UnpackF8(bytes[2 * step], a[step][0], a[step][2]);
          UnpackF8(bytes[2 * step + 1], a[step][1], a[step][3]);
        }
      } else {
        LoadMatrices(a[0], box + (weight_piece ^ (k32 % 2 * 64)));
        LoadMatrices(a[1], box + (weight_piece ^ (k32 % 2 * 64 + 32)));
      }
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
        uint32_t b[4];
        LoadMatrices(b, row_lane + k32 / 2 * Layout::kRowBoxBytes + column * 8 * 128 + (row_piece ^ (k32 % 2 * 64)));
        MultiplyAccumulate(sums.values[column], a[0], b[0], b[1]);
        MultiplyAccumulate(sums.values[column], a[1], b[2], b[3]);
      }
    }
  }

  const DecodeMatmulArgs& args_;
  Shared& shared_;
  const uint32_t ring_;
  const int strip_, lane_;
  RingPlace<kQueue> queue_;
};

// The warp that finishes a strip: when the last part of a tile has come, from whichever block, it sums them all in
// order. It waits for the memory instead of the warps that multiply.
template <int kRows, int kStages>
class StripFinisher {
 public:
  __device__ StripFinisher(const DecodeMatmulArgs& args, DecodeShared<kStages>& shared, int strip)
      : args_(args), shared_(shared), strip_(strip), lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    for (RingPlace<kQueue> queue;; queue.Advance()) {
      WaitBarrier(SharedAddress(&shared_.part_full[strip_][queue.index]), queue.parity);
      const int tile = shared_.part_tiles[strip_][queue.index];
      __syncwarp();
      if (lane_ == 0) ArriveBarrier(SharedAddress(&shared_.part_empty[strip_][queue.index]));
      if (tile < 0) return;
      Finish(tile);
    }
  }

 private:
  __device__ void Finish(int tile) const {
    int* const counter = args_.counters + tile * kMultiplyWarps + strip_;
    int arrived = 0;
    if (lane_ == 0) {
      __threadfence();
      arrived = atomicAdd(counter, 1);
    }
    const int chunks = args_.cuts.num_chunks;
    const int first = BlockOf(args_.cuts, tile * chunks), last = BlockOf(args_.cuts, (tile + 1) * chunks - 1);
    if (__shfl_sync(0xffffffffu, arrived, 0) != last - first) return;
    __threadfence();
    if (lane_ == 0) *counter = 0;
    StripSums<kRows> sums = {};
    for (int block = first; block <= last; block += 32) {
      const int slot_of_lane = SlotOf(args_.cuts, min(block + lane_, last), tile);
      const int count = min(32, last - block + 1);
#pragma unroll(kRows <= 16 ? 4 : 2)
      for (int i = 0; i < count; ++i) {
        const float4* part = PartOf<kRows>(args_, __shfl_sync(0xffffffffu, slot_of_lane, i), strip_);
#pragma unroll
        for (int column = 0; column < kRows / 8; ++column) {
          const float4 v = __ldcg(part + column * 32);
          float(&sum)[4] = sums.values[column];
          sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
      }
    }
    WriteStrip<kRows>(args_, tile, strip_, sums);
  }

  const DecodeMatmulArgs& args_;
  DecodeShared<kStages>& shared_;
  const int strip_, lane_;
};

// Grid: cuts.num_blocks.
template <int kRows, bool kF8>
__global__ void __launch_bounds__(kDecodeThreads, 2) DecodeMatmulKernel(const __grid_constant__ DecodeMatmulArgs args) {
  using Layout = DecodeLayout<kRows, kF8>;
  extern __shared__ unsigned char unaligned[];
  __shared__ DecodeShared<Layout::kStages> shared;
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      InitBarrier(SharedAddress(&shared.full[stage]), kTensorMaps ? 1 : 33);
      InitBarrier(SharedAddress(&shared.empty[stage]), kMultiplyWarps);
    }
    for (int strip = 0; strip < kMultiplyWarps; ++strip) {
      for (int i = 0; i < kQueue; ++i) {
        InitBarrier(SharedAddress(&shared.part_full[strip][i]), 1);
        InitBarrier(SharedAddress(&shared.part_empty[strip][i]), 1);
      }
    }
    PublishBarriers();
    shared.released = 0;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp == 2 * kMultiplyWarps) {
    RingFiller<kRows, kF8>(args, shared, ring).Run();
  } else {
    WaitForInputs();
    if (threadIdx.x == 0) *static_cast<volatile int*>(&shared.released) = 1;
    if (warp < kMultiplyWarps) {
      StripMultiplier<kRows, kF8>(args, shared, ring, warp).Run();
    } else {
      StripFinisher<kRows, Layout::kStages>(args, shared, warp - kMultiplyWarps).Run();
    }
  }
}

}  // namespace winnow::cuda
