#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/fence_reads.cuh"
#include "kernels/cuda/matmul/matmul_few_rows.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/matmul_fragments.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_parts.cuh"
#include "kernels/cuda/matmul/matmul_warpgroup.cuh"

// y = x W^T for up to 64 rows of x, bound by reading W once. Each block has two warps that fill a ring with units of W
// and x, and warps that multiply 16 output features each. A tile that several blocks share is finished by these
// together (matmul_parts.cuh), in the order of k. Row invariance: cuts depend on the shape of W alone, and columns of
// an mma (rows of x) are independent.
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
  static constexpr bool kFewRows = Form::kIsPacked && kRows <= 16;
  using Units = std::conditional_t<
      kFewRows, FewRowUnits<kRows, Form>,
      std::conditional_t<kWarpgroups && Form::kIsPacked, WarpgroupUnits<kRows, Form>, StripUnits<kRows, Form>>>;

 public:
  __device__ StripMultiplier(const DecodeMatmulArgs& args, Shared& shared, uint32_t ring, TileEnd& end, int strip)
      : args_(args),
        ring_(Opaque(ring)),
        full_(Opaque(SharedAddress(shared.full))),
        empty_(Opaque(SharedAddress(shared.empty))),
        end_(end),
        strip_(strip),
        lane_(threadIdx.x % 32) {}

  // What needs no input.
  __device__ void Prepare() {
    constexpr int kFinishers = kRows <= 16 ? 1 : kRows <= 32 ? 2 : Form::kMultiplyWarps;
    const TileEnd end = TileEnd::Of<Form, kFinishers>(args_.cuts, strip_, FinishPlaces<kRows, Form>::kPlaces);
    if (lane_ == 0) end_ = end;
    __syncwarp();
  }

  __device__ void Run() {
    Units units(strip_, lane_);
    RingPlace<Layout::kStages> place;
    for (UnitCursor unit(args_.cuts, blockIdx.x); unit.left() > 0; unit.SkipTile()) {
      Sums sums = {};
      MultiplyTile(units, unit.left_of_tile(), place, sums);
      Finish(unit, sums);
    }
  }

 private:
  // Addresses that stay in registers: the compiler makes others anew in each turn of a loop.
  static __device__ uint32_t Opaque(uint32_t address) { return __shfl_sync(0xffffffffu, address, 0); }

  // The block's units of a tile.
  __device__ void MultiplyTile(Units& units, int left, RingPlace<Layout::kStages>& place, Sums& sums) const {
    if constexpr (kFewRows) {
#pragma unroll 1
      for (; left >= Units::kTogether; left -= Units::kTogether) {
        MultiplyTogether<Units::kTogether>(units, place, sums);
      }
      if (left > 0) MultiplyTogether<1>(units, place, sums);
    } else {
      int held = -1;  // the stage that is being read
      const auto release = [&] {
        if (held >= 0) Release({held});
        held = -1;
      };
#pragma unroll 1
      for (; left > 0; --left, place.Advance()) {
        WaitBarrier(full_ + place.index * sizeof(uint64_t), place.parity);
        units.Multiply(StageAt(place.index), ScalesAt(place.index), sums, release);
        held = place.index;
        if (!Units::kRunsOn) release();
      }
      units.End(sums);
      release();
    }
  }
  template <int kUnits>
  __device__ void MultiplyTogether(const Units& units, RingPlace<Layout::kStages>& place, Sums& sums) const {
    uint32_t stages[kUnits], scales[kUnits];
    int indices[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u, place.Advance()) {
      indices[u] = place.index, stages[u] = StageAt(place.index), scales[u] = ScalesAt(place.index);
      WaitBarrier(full_ + place.index * sizeof(uint64_t), place.parity);
    }
    units.Multiply(stages, scales, sums);
    Release(indices);
  }
  __device__ uint32_t StageAt(int index) const {
    return ring_ + index * Layout::kStageBytes;
  }
  __device__ uint32_t ScalesAt(int index) const {
    return ring_ + Layout::kScalesAt + index * Form::kScaleBytes;
  }
  // Stages that have been read.
  template <int kStages>
  __device__ void Release(const int (&indices)[kStages]) const {
    if (Units::kNeedsFence) FenceReadsForCopies();
    __syncwarp();
    if (lane_ != 0) return;
#pragma unroll
    for (int i = 0; i < kStages; ++i) ArriveBarrier(empty_ + indices[i] * sizeof(uint64_t));
  }

  // With the sums of the block's units of a tile, of which `unit` is the first.
  __device__ void Finish(const UnitCursor& unit, Sums& sums) const {
    const int units = unit.left_of_tile(), own = blockIdx.x;
    if (units == args_.cuts.num_chunks) return StripOutput<kRows, Form>(args_, unit.tile(), strip_).Write(sums);
    const bool is_last = units == unit.left();
    const TileEnd end = is_last ? end_ : TileEnd();
    if (!end.finishes()) LeavePart(PartOf<kRows, Form>(args_.parts, own, unit.begins_tile(), strip_), sums);
    // Until the other warps have read the ring.
    if (is_last) asm volatile("bar.sync 1, %0;" ::"n"(Form::kMultiplyWarps * 32) : "memory");
    if (!end.finishes()) return;
    const FinishPlaces<kRows, Form> places(end, ring_);
    const StripOutput<kRows, Form> output(args_, unit.tile(), strip_);
    output.FetchOld(places);
    TakeParts(args_.parts, end, strip_, places, sums);
    output.WriteFetched(sums, places);
  }

  const DecodeMatmulArgs& args_;
  const uint32_t ring_, full_, empty_;
  TileEnd& end_;  // of the warp
  const int strip_, lane_;
};

// Grid: cuts.num_blocks.
template <int kRows, typename Form>
__global__ void __launch_bounds__(Form::kDecodeThreads, 2)
    DecodeMatmulKernel(const __grid_constant__ DecodeMatmulArgs args) {
  using Layout = DecodeLayout<kRows, Form>;
  extern __shared__ unsigned char unaligned[];
  __shared__ DecodeShared<Layout::kStages> shared;
  __shared__ TileEnd ends[Form::kMultiplyWarps];
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      InitBarrier(SharedAddress(&shared.full[stage]), kTensorMaps ? 2 : 33);
      InitBarrier(SharedAddress(&shared.empty[stage]), Form::kMultiplyWarps);
    }
    PublishBarriers();
    shared.released = 0;
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the same in all lanes
  if (warp == Form::kMultiplyWarps) {
    RingFiller<kRows, Form>(args, shared, ring).RunWeights();
  } else if (warp > Form::kMultiplyWarps) {
    RingFiller<kRows, Form>(args, shared, ring).RunRows();
  } else {
    StripMultiplier<kRows, Form> multiplier(args, shared, ring, ends[warp], warp);
    multiplier.Prepare();
    WaitForInputs();
    if (threadIdx.x == 0) *static_cast<volatile int*>(&shared.released) = 1;
    multiplier.Run();
  }
}

}  // namespace winnow::device
