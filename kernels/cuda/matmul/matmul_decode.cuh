#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/fence_reads.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/matmul_fragments.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_parts.cuh"
#include "kernels/cuda/matmul/matmul_warpgroup.cuh"

// y = x W^T for up to 64 rows of x, bound by reading W once. Each block has a warp that fills a ring with units of W
// and x, and warps that multiply 16 output features each. A tile that several blocks share is finished by the block
// that begins it, which for that block is the last thing to do: it adds what the others have left, in the order of k.
// Row invariance: cuts depend on the shape of W alone, and columns of an mma (rows of x) are independent.
namespace winnow::device {

// Units multiplied by warps of their own (mma.sync): of bf16, and of any form where there are no warpgroups.
template <int kRows, typename Form>
class StripUnits {
  using Layout = DecodeLayout<kRows, Form>;
  using Sums = StripSums<kRows>;

 public:
  static constexpr bool kRunsOn = false;
  static constexpr bool kNeedsFence = true;

  __device__ StripUnits(int strip, int lane) : strip_(strip), lane_(lane) {}

  // As WarpgroupUnits has it.
  template <typename Release>
  __device__ void Multiply(uint32_t stage, uint32_t scales, Sums& sums, const Release&) {
    constexpr int kGroupSteps = Form::kHasGroups ? Form::kGroup / 32 : 1;
    const FragmentReader<Form> fragments(stage, strip_, lane_);
    const uint32_t row_lane = stage + Layout::kWeightBytes + lane_ % 8 * 128;
    const uint32_t row_piece = ((lane_ / 8) ^ (lane_ % 8)) * 16;
    GroupScales<Form> of_step;
    Sums of_group;
    FragmentCodes codes;
#pragma unroll
    for (int k32 = 0; k32 < Form::kChunkK / 32; ++k32) {
      if (Form::kHasGroups && k32 % kGroupSteps == 0) {
        of_step.Load(scales, k32 / kGroupSteps, strip_, lane_);
        of_group = {};
      }
      Sums& to = Form::kHasGroups ? of_group : sums;
      uint32_t a[2][4];
      fragments.Load(k32, of_step, codes, a);
      // Loads before the first use; blocks of packed weights have twice the warps, and half of the registers for each.
      constexpr int kColumns = kRows / 8, kMost = Form::kIsPacked ? 2 : 4;
      constexpr int kLoads = kColumns < kMost ? kColumns : kMost;
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
            MultiplyAccumulate(to.values[first + i], a[step], b[i][2 * step], b[i][2 * step + 1]);
          }
        }
      }
      if (Form::kHasGroups && k32 % kGroupSteps == kGroupSteps - 1) of_step.AddScaled(of_group, sums);
    }
  }
  __device__ void End(Sums&) {}

 private:
  const int strip_, lane_;
};

// One of the warps that multiply.
template <int kRows, typename Form>
class StripMultiplier {
  using Layout = DecodeLayout<kRows, Form>;
  using Shared = DecodeShared<Layout::kStages>;
  using Sums = StripSums<kRows>;
  using Units =
      std::conditional_t<kWarpgroups && Form::kIsPacked, WarpgroupUnits<kRows, Form>, StripUnits<kRows, Form>>;

 public:
  __device__ StripMultiplier(const DecodeMatmulArgs& args, Shared& shared, uint32_t ring, int strip)
      : args_(args), shared_(shared), ring_(ring), strip_(strip), lane_(threadIdx.x % 32) {}

  __device__ void Run() {
    Units units(strip_, lane_);
    Sums sums = {};
    RingPlace<Layout::kStages> place;
    int held = -1;  // the stage that is being read
    const auto release = [&] {
      if (held < 0) return;
      if (Units::kNeedsFence) FenceReadsForCopies();
      __syncwarp();
      if (lane_ == 0) ArriveBarrier(SharedAddress(&shared_.empty[held]));
      held = -1;
    };
    UnitCursor unit(args_.cuts, blockIdx.x);
    while (unit.left() > 0) {
      const int tile = unit.tile();
      bool begins_tile, ends;
      do {
        WaitBarrier(SharedAddress(&shared_.full[place.index]), place.parity);
        units.Multiply(ring_ + place.index * Layout::kStageBytes,
                       ring_ + Layout::kScalesAt + place.index * Form::kScaleBytes, sums, release);
        held = place.index;
        if (!Units::kRunsOn) release();
        place.Advance();
        begins_tile = unit.begins_tile(), ends = unit.ends();
        unit.Advance();
      } while (!ends);
      units.End(sums);
      release();
      if (begins_tile) {
        Finish(tile, sums);
      } else {
        LeavePart(PartOf<kRows, Form>(args_.parts, blockIdx.x, strip_), sums);
      }
      sums = {};
    }
  }

 private:
  __device__ void Finish(int tile, Sums& sums) const {
    StripOutput<kRows, Form> output(args_, tile, strip_);
    const int last = BlockOf(args_.cuts, (tile + 1) * args_.cuts.num_chunks - 1);
    TakeParts<kRows, Form>(args_.parts, blockIdx.x + 1, last, strip_, ring_, sums);
    output.Write(sums);
  }

  const DecodeMatmulArgs& args_;
  Shared& shared_;
  const uint32_t ring_;
  const int strip_, lane_;
};

// Grid: cuts.num_blocks.
template <int kRows, typename Form>
__global__ void __launch_bounds__(Form::kDecodeThreads, 2)
    DecodeMatmulKernel(const __grid_constant__ DecodeMatmulArgs args) {
  using Layout = DecodeLayout<kRows, Form>;
  extern __shared__ unsigned char unaligned[];
  __shared__ DecodeShared<Layout::kStages> shared;
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      InitBarrier(SharedAddress(&shared.full[stage]), kTensorMaps ? 1 : 33);
      InitBarrier(SharedAddress(&shared.empty[stage]), Form::kMultiplyWarps);
    }
    PublishBarriers();
    shared.released = 0;
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the same in all lanes
  if (warp == Form::kMultiplyWarps) {
    RingFiller<kRows, Form>(args, shared, ring).Run();
  } else {
    WaitForInputs();
    if (threadIdx.x == 0) *static_cast<volatile int*>(&shared.released) = 1;
    StripMultiplier<kRows, Form>(args, shared, ring, warp).Run();
  }
}

}  // namespace winnow::device
