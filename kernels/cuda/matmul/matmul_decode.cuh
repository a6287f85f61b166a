#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/fence_reads.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_parts.cuh"

// y = x W^T of bf16 for up to 64 rows of x, bound by reading W once. Each block has a warp that fills a ring with boxes
// of W and x, and four warps that multiply 16 output features each. A tile that several blocks share is finished by the
// block that begins it, which for that block is the last thing to do: it adds what the others have left, in the order
// of k. Row invariance: cuts depend on the shape of W alone, and columns of an mma (rows of x) are independent.
namespace winnow::cuda {

// One of the warps that multiply.
template <int kRows>
class TileMultiplier {
  using Layout = DecodeLayout<kRows>;
  using Shared = DecodeShared<Layout::kStages>;
  using Sums = TileSums<kRows>;

 public:
  __device__ TileMultiplier(const DecodeMatmulArgs& args, Shared& shared, uint32_t ring, int strip)
      : args_(args), shared_(shared), ring_(ring), strip_(strip), lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    Sums sums = {};
    RingPlace<Layout::kStages> place;
    while (true) {
      WaitBarrier(SharedAddress(&shared_.full[place.index]), place.parity);
      const UnitTask task = shared_.tasks[place.index];
      if (task.tile < 0) return;
      Multiply(sums, place.index);
      FenceReadsForCopies();
      __syncwarp();
      if (lane_ == 0) ArriveBarrier(SharedAddress(&shared_.empty[place.index]));
      place.Advance();
      if (task.then == kGoOn) continue;
      if (task.then == kLeave) {
        LeavePart(PartOf<kRows>(args_.parts, blockIdx.x, strip_), sums);
      } else {
        Finish(task.tile, sums);
      }
      sums = {};
    }
  }

 private:
  __device__ void Finish(int tile, Sums& sums) const {
    TileOutput<kRows> output(args_, tile, strip_);
    const int last = BlockOf(args_.cuts, (tile + 1) * args_.cuts.num_chunks - 1);
    TakeParts<kRows>(args_.parts, blockIdx.x + 1, last, strip_, sums);
    output.Write(sums);
  }

  __device__ void Multiply(Sums& sums, int stage) const {
    // The swizzle: which piece of its row a lane reads, but for bits that the step in k flips.
    const uint32_t weights = ring_ + stage * Layout::kStageBytes;
    const uint32_t weight_lane = weights + (strip_ * kStripOut + lane_ % 16) * 128;
    const uint32_t weight_piece = ((lane_ / 16) ^ (lane_ % 8)) * 16;
    const uint32_t row_lane = weights + Layout::kWeightBytes + lane_ % 8 * 128;
    const uint32_t row_piece = ((lane_ / 8) ^ (lane_ % 8)) * 16;
#pragma unroll
    for (int k32 = 0; k32 < kChunkSteps; ++k32) {
      uint32_t a[2][4];
      const uint32_t box = weight_lane + k32 / 2 * Layout::kWeightBoxBytes;
      LoadMatrices(a[0], box + (weight_piece ^ (k32 % 2 * 64)));
      LoadMatrices(a[1], box + (weight_piece ^ (k32 % 2 * 64 + 32)));
      constexpr int kColumns = kRows / 8, kLoads = kColumns < 4 ? kColumns : 4;  // loads before the first use
#pragma unroll
      for (int first = 0; first < kColumns; first += kLoads) {
        uint32_t b[kLoads][4];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          LoadMatrices(
              b[i], row_lane + k32 / 2 * Layout::kRowBoxBytes + (first + i) * 8 * 128 + (row_piece ^ (k32 % 2 * 64)));
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            MultiplyAccumulate(sums.values[first + i], a[step], b[i][2 * step], b[i][2 * step + 1]);
          }
        }
      }
    }
  }

  const DecodeMatmulArgs& args_;
  Shared& shared_;
  const uint32_t ring_;
  const int strip_, lane_;
};

// Grid: cuts.num_blocks.
template <int kRows>
__global__ void __launch_bounds__(kDecodeThreads, 2) DecodeMatmulKernel(const __grid_constant__ DecodeMatmulArgs args) {
  using Layout = DecodeLayout<kRows>;
  extern __shared__ unsigned char unaligned[];
  __shared__ DecodeShared<Layout::kStages> shared;
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      InitBarrier(SharedAddress(&shared.full[stage]), kTensorMaps ? 1 : 33);
      InitBarrier(SharedAddress(&shared.empty[stage]), kTileStrips);
    }
    PublishBarriers();
    shared.released = 0;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp == kTileStrips) {
    RingFiller<kRows>(args, shared, ring).Run();
  } else {
    WaitForInputs();
    if (threadIdx.x == 0) *static_cast<volatile int*>(&shared.released) = 1;
    TileMultiplier<kRows>(args, shared, ring, warp).Run();
  }
}

}  // namespace winnow::cuda
