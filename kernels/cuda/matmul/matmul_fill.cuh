#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/matmul/matmul_cuts.cuh"
#include "kernels/cuda/matmul/matmul_forms.cuh"
#include "kernels/cuda/matmul/matmul_ring.cuh"
#include "kernels/device/params/all_reduce_terms.h"

// The half of a decode product that moves memory: what a block shares, and the warp that fills its ring with boxes of W
// and x.
namespace winnow::device {

// Of one multiprocessor: blocks that ever began on it, and that have fetched all they fetch. They wrap around.
struct Turns {
  uint32_t begun, fetched;
};
inline constexpr int kMaxMultiprocessors = 512;

struct DecodeMatmulArgs {
  // Boxes of 128 bytes x the form's kTileOut rows of W where it is row-major, and x kRows rows of x. Unused before
  // sm_90.
  CUtensorMap weight_map;
  CUtensorMap x_map;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const char* weight;
  const float* scales;        // of output features; null: none
  const float* group_scales;  // of a form that has groups
  void* y;
  int64_t y_stride;
  TermPlaces term;
  int num_rows;
  int out_features;
  int in_features;
  bool accumulate;
  bool y_is_bf16;
  MatmulCuts cuts;
  Turns* turns;   // [kMaxMultiprocessors]
  float4* parts;  // of sums, one of each block (matmul_parts.cuh); zeros between launches
};

inline constexpr int kRingBytes = 111 * 1024;  // twice on a multiprocessor: of this kernel and of the next

// A stage is a unit of W, which is boxes of 128 bytes by kTileOut rows where W is row-major, then boxes of 128 bytes by
// kRows rows of x. Boxes are swizzled. Behind the stages lie the scales of each one's groups.
template <int kRows, typename Form>
struct DecodeLayout {
  static constexpr int kBoxes = Form::kChunkK / 64;
  static constexpr int kRowBoxBytes = kRows * 128;
  static constexpr int kWeightBytes = Form::kUnitBytes;
  static constexpr int kStageBytes = kWeightBytes + kBoxes * kRowBoxBytes;
  static constexpr int kStages = kRingBytes / (kStageBytes + Form::kScaleBytes);
  static constexpr int kScalesAt = kStages * kStageBytes;
  // Swizzles repeat every 1024 bytes.
  static constexpr int kSharedBytes = kScalesAt + kStages * Form::kScaleBytes + 1024;
  static_assert(kStages >= 2);
};

template <int kStages>
struct DecodeShared {
  uint64_t full[kStages], empty[kStages];
  int released;  // earlier kernels have ended
};

// Position in a ring of barriers.
template <int kSize>
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;
  __device__ void Advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
};

// The units of a block, in order.
class UnitCursor {
 public:
  __device__ UnitCursor(const MatmulCuts& cuts, int block) : num_chunks_(cuts.num_chunks) {
    const WorkRange units = UnitsOf(cuts, block);
    left_ = units.end - units.begin;
    tile_ = units.begin / num_chunks_;
    chunk_ = units.begin - tile_ * num_chunks_;
    begins_tile_ = chunk_ == 0;
  }
  __device__ int left() const { return left_; }
  __device__ int tile() const { return tile_; }
  __device__ int chunk() const { return chunk_; }
  // The block's units of this tile from here on.
  __device__ int left_of_tile() const { return min(left_, num_chunks_ - chunk_); }
  // Whether this block takes the tile's first chunk.
  __device__ bool begins_tile() const { return begins_tile_; }
  __device__ void Advance() {
    --left_;
    if (++chunk_ == num_chunks_) BeginTile();
  }
  // To the first unit of the next tile, or behind the last one.
  __device__ void SkipTile() {
    left_ -= left_of_tile();
    BeginTile();
  }

 private:
  __device__ void BeginTile() {
    chunk_ = 0;
    begins_tile_ = true;
    ++tile_;
  }

  int num_chunks_;
  int left_, tile_, chunk_;
  bool begins_tile_;
};

// What the two warps do that fill the ring, one with W and one with x: a thread that asks for a copy is held up by it
// for some 60 ns. Without tensor maps one warp does both.
template <int kRows, typename Form>
class RingFiller {
  using Layout = DecodeLayout<kRows, Form>;
  using Shared = DecodeShared<Layout::kStages>;

 public:
  __device__ RingFiller(const DecodeMatmulArgs& args, Shared& shared, uint32_t ring)
      : args_(args), shared_(shared), ring_(ring), lane_(threadIdx.x % 32) {}

  __device__ void RunWeights() {
    if (kTensorMaps && lane_ == 0) {
      if (!Form::kIsPacked) PrefetchMap(args_.weight_map);
      AwaitTurn();
    }
    __syncwarp();
    // Weights do not depend on earlier kernels: the ring fills while those still run.
    const uint64_t once = EvictFirst();
    UnitCursor unit(args_.cuts, blockIdx.x), first = unit;
    RingPlace<Layout::kStages> place;
    for (; unit.left() > 0 && place.parity == 0; unit.Advance(), place.Advance()) CopyWeights(unit, place.index, once);
    WaitForInputs();
    // Not before: all blocks of the kernel before this one have left now, and this one has a block on each
    // multiprocessor, so that the next kernel's blocks, too, come one to a multiprocessor.
    LetDependentsStart();
    if (!kTensorMaps) {
      RingPlace<Layout::kStages> early;
      for (; first.left() > unit.left(); first.Advance(), early.Advance()) CopyRows(first, early.index);
    }
    for (; unit.left() > 0; unit.Advance(), place.Advance()) {
      WaitBarrier(SharedAddress(&shared_.empty[place.index]), place.parity ^ 1);
      CopyWeights(unit, place.index, once);
      if (!kTensorMaps) CopyRows(unit, place.index);
    }
    if (kTensorMaps && lane_ == 0) atomicAdd(&TurnsHere()->fetched, 1);
  }

  __device__ void RunRows() {
    if (!kTensorMaps) return;
    if (lane_ == 0) PrefetchMap(args_.x_map);
    RingPlace<Layout::kStages> place;
    WaitForInputs();
    for (UnitCursor unit(args_.cuts, blockIdx.x); unit.left() > 0; unit.Advance(), place.Advance()) {
      // Stages are empty at first: waiting for the phase before the first returns at once.
      WaitBarrier(SharedAddress(&shared_.empty[place.index]), place.parity ^ 1);
      CopyRows(unit, place.index);
    }
  }

 private:
  __device__ Turns* TurnsHere() const {
    uint32_t multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    return args_.turns + multiprocessor % kMaxMultiprocessors;
  }
  // A block of the next kernel is there early, yet fetches nothing until the block that runs on its multiprocessor has
  // fetched all: sooner it would take bandwidth, later the memory would idle. Never longer than until earlier kernels
  // have ended, so that two blocks of one kernel on a multiprocessor do not wait for each other.
  __device__ void AwaitTurn() const {
    Turns* const turns = TurnsHere();
    const uint32_t begun_before = atomicAdd(&turns->begun, 1);
    const volatile uint32_t* const fetched = &turns->fetched;
    const volatile int* const released = &shared_.released;
    while (static_cast<int>(*fetched - begun_before) < 0 && *released == 0) {
    }
  }

  __device__ void CopyWeights(const UnitCursor& unit, int stage, uint64_t once) {
    const uint32_t to = ring_ + stage * Layout::kStageBytes, barrier = SharedAddress(&shared_.full[stage]);
    if (lane_ == 0) {
      if (kTensorMaps) {
        ArriveExpectBytes(barrier, Layout::kWeightBytes + Form::kScaleBytes);
      } else {
        ArriveBarrier(barrier);
      }
    }
    if constexpr (Form::kIsPacked) {
      CopyUnits(to, args_.weight, unit, Form::kUnitBytes, barrier, once);
    } else {
      CopyWeightBoxes(unit, to, barrier, once);
    }
    if constexpr (Form::kHasGroups) {
      CopyUnits(ring_ + Layout::kScalesAt + stage * Form::kScaleBytes,
                reinterpret_cast<const char*>(args_.group_scales), unit, Form::kScaleBytes, barrier, once);
    }
  }

  __device__ void CopyWeightBoxes(const UnitCursor& unit, uint32_t to, uint32_t barrier, uint64_t once) {
    const int row = unit.tile() * Form::kTileOut;
#pragma unroll
    for (int box = 0; box < Layout::kBoxes; ++box) {
      const int k = unit.chunk() * Form::kChunkK + box * 64;
      const uint32_t box_to = to + box * (Form::kTileOut * 128);
      if (!kTensorMaps) {
        const int64_t pitch = int64_t{args_.in_features} * 2;
        CopyBoxByLanes(box_to, args_.weight + row * pitch + k * 2, pitch, Form::kTileOut, args_.out_features - row,
                       (args_.in_features - k) * 2);
      } else if (lane_ == 0) {
        CopyBox(box_to, args_.weight_map, k, row, barrier, once);
      }
    }
  }

  // What lies at `from` for a unit, `bytes` of each one behind the other.
  __device__ void CopyUnits(uint32_t to, const char* from, const UnitCursor& unit, int bytes, uint32_t barrier,
                            uint64_t once) {
    const char* const source = from + (int64_t{unit.tile()} * args_.cuts.num_chunks + unit.chunk()) * bytes;
    if (!kTensorMaps) {
      CopyBytesByLanes(to, source, bytes);
    } else if (lane_ == 0) {
      CopyBytes(to, source, bytes, barrier, once);
    }
  }

  __device__ void CopyRows(const UnitCursor& unit, int stage) {
    const uint32_t to = ring_ + stage * Layout::kStageBytes + Layout::kWeightBytes;
    const uint32_t barrier = SharedAddress(&shared_.full[stage]);
    const uint64_t often = EvictLast();
    if (kTensorMaps && lane_ == 0) ArriveExpectBytes(barrier, Layout::kStageBytes - Layout::kWeightBytes);
#pragma unroll
    for (int box = 0; box < Layout::kBoxes; ++box) {
      const int k = unit.chunk() * Form::kChunkK + box * 64;
      const uint32_t box_to = to + box * Layout::kRowBoxBytes;
      if (!kTensorMaps) {
        CopyBoxByLanes(box_to, reinterpret_cast<const char*>(args_.x + k), args_.x_stride * 2, kRows, args_.num_rows,
                       (args_.in_features - k) * 2);
      } else if (lane_ == 0) {
        CopyBox(box_to, args_.x_map, k, 0, barrier, often);
      }
    }
    if (!kTensorMaps) ArriveAfterCopies(barrier);
  }

  const DecodeMatmulArgs& args_;
  Shared& shared_;
  const uint32_t ring_;
  const int lane_;
};

}  // namespace winnow::device
