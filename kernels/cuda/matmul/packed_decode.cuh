#pragma once
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/fence_reads.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/packed_fill.cuh"
#include "kernels/cuda/matmul/packed_fragments.cuh"
#include "kernels/cuda/matmul/packed_parts.cuh"

// y = x W^T of codes for up to 64 rows of x, bound by reading W once. Each block has a warp that fills a ring with
// units of W and boxes of x, and warps that share out the strips of a pass to multiply. Row invariance: the shape of W
// alone decides what is added up in which order, and columns of an mma (rows of x) are independent.
namespace winnow::cuda {

// One of the warps that multiply. Its strips of a pass are `warp` and those kMultiplyWarps apart.
template <int kRows, typename Form>
class PackedMultiplier {
  using Layout = PackedLayout<kRows, Form>;
  static constexpr int kStrips = Layout::kWarpStrips, kApart = Layout::kMultiplyWarps, kColumns = kRows / 8;
  using Sums = StripSums<kRows, kStrips>;
  using Scales = GroupScales<Form, kStrips>;

 public:
  __device__ PackedMultiplier(const PackedMatmulArgs& args, const PackedRing<kRows, Form>& ring, int warp)
      : args_(args), ring_(ring), warp_(warp), lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    const PackedShape& shape = args_.shape;
    const int team = blockIdx.x / kTeamBlocks, block = blockIdx.x % kTeamBlocks;
    const int num_chunks = shape.FirstChunk(block + 1) - shape.FirstChunk(block);
    PackedPlace place;
    for (int pass = 0; pass < shape.passes; ++pass) {
      const StripRange strips = shape.Pass(team, pass);
      if (strips.count <= 0) return;
      Sums sums = {};
      for (int i = 0; i < num_chunks; ++i, place.Advance(ring_.stages())) {
        WaitBarrier(ring_.Full(place.stage), place.parity);
        if (warp_ < strips.count) MultiplyUnit(place.stage, strips.count, sums);
        FenceReadsForCopies();
        __syncwarp();
        if (lane_ == 0) ArriveBarrier(ring_.Empty(place.stage));
      }
      Finish(strips, pass == 0, sums);
    }
  }

 private:
  // Behind the matrix's last input rows of x are zeros, and so are those products: codes of every form are finite.
  __device__ void MultiplyUnit(int stage, int strips, Sums& sums) const {
    if constexpr (Form::kHasGroups) {
#pragma unroll
      for (int group = 0; group < Form::kChunkGroups; ++group) {
        Scales scales;
        scales.Load(ring_.Scales(stage) + group * strips * (Form::kStripScales * 4), warp_, kApart, lane_);
        Sums of_group = {};
        MultiplySteps<Form::kGroup / kStepK>(stage, strips, group * (Form::kGroup / kStepK), scales, of_group);
        scales.AddScaled(of_group, sums);
      }
    } else {
      MultiplySteps<kChunkSteps>(stage, strips, 0, Scales(), sums);
    }
  }

  // Adds the products of some steps.
  template <int kSteps>
  __device__ void MultiplySteps(int stage, int strips, int first_step, const Scales& scales, Sums& sums) const {
    const uint32_t rows = ring_.Rows(stage) + lane_ % 8 * 128;
    const uint32_t piece = ((lane_ / 8) ^ (lane_ % 8)) * 16;
    const uint32_t weights = ring_.Weights(stage) + warp_ * Form::kStripBytes;
    // Unrolled further, many sums would not fit registers.
    constexpr int kUnrolled = kStrips * kRows < 64 ? kSteps : kSteps < 2 ? 1 : 2;
    // Of few rows two strips in turns: an mma waits for the one before it on the same sums.
    constexpr int kTurns = kRows >= 32 ? 1 : 2;
#pragma unroll kUnrolled
    for (int step = first_step; step < first_step + kSteps; ++step) {
      uint32_t b[kColumns][4];
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        LoadMatrices(b[column], rows + step / 2 * Layout::kBoxBytes + column * 8 * 128 + (piece ^ (step % 2 * 64)));
      }
#pragma unroll
      for (int first = 0; first < kStrips; first += kTurns) {
        // Strips that the pass does not have are multiplied beside those that it has, and left out alone.
        if (first > 0 && warp_ + first * kApart >= strips) break;
        uint32_t a[kTurns][2][4];
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
          const uint32_t strip = weights + (step * strips + (first + i) * kApart) * Form::kStripBytes;
          LoadFragments<Form>(
              strip, lane_, [&](int half) { return scales.MinusZeros(first + i, half); }, a[i]);
        }
#pragma unroll
        for (int k16 = 0; k16 < 2; ++k16) {
#pragma unroll
          for (int i = 0; i < kTurns; ++i) {
#pragma unroll
            for (int column = 0; column < kColumns; ++column) {
              MultiplyAccumulate(sums.values[first + i][column], a[i][k16], b[column][2 * k16], b[column][2 * k16 + 1]);
            }
          }
        }
      }
    }
  }

  // Of the warp's strips the block finishes one at most.
  __device__ void Finish(const StripRange& strips, bool is_first, const Sums& sums) const {
    const int block = blockIdx.x % kTeamBlocks;
    float own[kColumns][4];
    int finished = -1;
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      const int strip = warp_ + i * kApart;
      if (strip >= strips.count) break;
      if (FinisherOf(strip) != block) {
        LeavePart<kRows>(args_, strip, is_first, sums.values[i]);
        continue;
      }
      finished = strip;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
#pragma unroll
        for (int j = 0; j < 4; ++j) own[column][j] = sums.values[i][column][j];
      }
    }
    if (finished < 0) return;
    StripOutput<kRows> output(args_, strips.first + finished);
    TakeParts<kRows>(args_, finished, own);
    output.Write(own);
  }

  const PackedMatmulArgs& args_;
  const PackedRing<kRows, Form>& ring_;
  const int warp_, lane_;
};

// Grid: kTeamBlocks for each team.
template <int kRows, typename Form>
__global__ void __launch_bounds__(PackedLayout<kRows, Form>::kThreads, PackedLayout<kRows, Form>::kBlocksAtOnce)
    PackedMatmulKernel(const __grid_constant__ PackedMatmulArgs args) {
  using Layout = PackedLayout<kRows, Form>;
  extern __shared__ unsigned char unaligned[];
  __shared__ PackedShared shared;
  const PackedRing<kRows, Form> ring((SharedAddress(unaligned) + 1023) / 1024 * 1024, shared, args.shape.pass_strips);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < ring.stages(); ++stage) {
      InitBarrier(ring.Full(stage), kTensorMaps ? 1 : 33);
      InitBarrier(ring.Empty(stage), Layout::kMultiplyWarps);
    }
    PublishBarriers();
    shared.released = 0;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp >= Layout::kMultiplyWarps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (Layout::kMovesRegisters)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::kFillRegisters));
#endif
    if (warp == Layout::kMultiplyWarps) PackedFiller<kRows, Form>(args, ring, shared.released).Run();
  } else {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (Layout::kMovesRegisters) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::kMultiplyRegisters));
    }
#endif
    WaitForInputs();
    if (threadIdx.x == 0) *static_cast<volatile int*>(&shared.released) = 1;
    PackedMultiplier<kRows, Form>(args, ring, warp).Run();
  }
}

}  // namespace winnow::cuda
