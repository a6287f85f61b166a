#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/collective/summands.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/matmul/matmul_ring.cuh"
#include "kernels/cuda/matmul/matmul_turns.cuh"
#include "kernels/cuda/matmul/packed_forms.cuh"

// The half of a product of codes that moves memory: what a block shares, and the warp that fills its ring with units of
// W and boxes of x.
namespace winnow::cuda {

struct PackedMatmulArgs {
  CUtensorMap x_map;  // boxes of 128 bytes x kRows rows; unused before sm_90
  const __nv_bfloat16* x;
  int64_t x_stride;
  const char* weight;
  const float* row_scales;   // of output features; null: none
  const char* group_scales;  // of a form that has groups
  void* y;
  int64_t y_stride;
  SummandPlaces summand;
  int num_rows;
  int out_features;
  int in_features;
  bool accumulate;
  bool y_is_bf16;
  PackedShape shape;
  Turns* turns;
  float4* parts;  // of sums (packed_parts.cuh); zeros between launches
};

// How a block uses its threads and shared memory. A stage of the ring is a unit: the codes of a pass's strips for a
// chunk of inputs, then two boxes of x, which are swizzled; behind the stages lie the scales of each one's groups.
template <int kRows, typename Form>
struct PackedLayout {
  // Strips of a warp that multiplies: with more of them what it reads of x is used more often, which is what bounds
  // many rows; with fewer, more warps hide each other's latencies. Results do not depend on it.
  static constexpr int kWarpStrips = kRows == 32 ? 4 : 2;
  static constexpr int kMultiplyWarps = kPassStrips / kWarpStrips;
  // Two, so that the next kernel's block fetches while this one's multiplies; the sums of many rows leave no registers
  // for that.
  static constexpr int kBlocksAtOnce = kRows > 32 ? 1 : 2;
  // Registers move from the warps of which one fills the ring to those that multiply, by groups of four.
  static constexpr bool kMovesRegisters = kRows > 16;
  static constexpr int kFillWarps = kMovesRegisters ? 4 : 1;
  static constexpr int kThreads = 32 * (kMultiplyWarps + kFillWarps);
  static constexpr int kRegisters = 65536 / (kBlocksAtOnce * kThreads) / 8 * 8, kFillRegisters = 40;
  static constexpr int kMultiplyRegisters =
      kRegisters + (kRegisters - kFillRegisters) * kFillWarps / kMultiplyWarps / 8 * 8;

  static constexpr int kBoxK = 64;
  static constexpr int kBoxes = kChunkK / kBoxK;
  static constexpr int kBoxBytes = kRows * 128;
  static constexpr int kRowBytes = kBoxes * kBoxBytes;
  static constexpr int kStripBytes = kChunkSteps * Form::kStripBytes;  // of a unit
  static constexpr int kRingBytes = 110 * 1024;  // twice on a multiprocessor: of this kernel and of the next
  // Swizzles repeat every 1024 bytes; and strips that a pass does not have are read beside those that it has.
  static constexpr int kSharedBytes = kRingBytes + 2048;
  static_assert(kStripBytes % 1024 == 0 && kRowBytes % 1024 == 0);
};

inline constexpr int kMaxPackedStages = 16;
struct PackedShared {
  uint64_t full[kMaxPackedStages], empty[kMaxPackedStages];
  int released;  // earlier kernels have ended
};

// The stages of a ring, which hold as many strips as passes of the matrix have.
template <int kRows, typename Form>
class PackedRing {
  using Layout = PackedLayout<kRows, Form>;

 public:
  __device__ PackedRing(uint32_t ring, PackedShared& shared, int pass_strips)
      : ring_(ring),
        shared_(shared),
        weight_bytes_(pass_strips * Layout::kStripBytes),
        scale_bytes_(pass_strips * Form::kScaleBytes),
        stages_(min(Layout::kRingBytes / (weight_bytes_ + Layout::kRowBytes + scale_bytes_), kMaxPackedStages)) {}

  __device__ int stages() const { return stages_; }
  __device__ uint32_t Weights(int stage) const { return ring_ + stage * (weight_bytes_ + Layout::kRowBytes); }
  __device__ uint32_t Rows(int stage) const { return Weights(stage) + weight_bytes_; }
  __device__ uint32_t Scales(int stage) const { return Weights(stages_) + stage * scale_bytes_; }
  __device__ uint32_t Full(int stage) const { return SharedAddress(&shared_.full[stage]); }
  __device__ uint32_t Empty(int stage) const { return SharedAddress(&shared_.empty[stage]); }

 private:
  const uint32_t ring_;
  PackedShared& shared_;
  const int weight_bytes_, scale_bytes_, stages_;
};

// A place in a ring, and the parity of its barriers' phase.
struct PackedPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void Advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// The units of a block in order: of each pass its chunks.
class PackedCursor {
 public:
  __device__ PackedCursor(const PackedShape& shape, int block)
      : shape_(shape),
        team_(block / kTeamBlocks),
        first_(shape.FirstChunk(block % kTeamBlocks)),
        end_(shape.FirstChunk(block % kTeamBlocks + 1)),
        chunk_(first_),
        strips_(shape.Pass(team_, 0)) {}
  __device__ bool done() const { return chunk_ == end_ || pass_ == shape_.passes || strips_.count <= 0; }
  __device__ const StripRange& strips() const { return strips_; }
  __device__ int chunk() const { return chunk_; }
  __device__ void Advance() {
    if (++chunk_ < end_) return;
    strips_ = shape_.Pass(team_, ++pass_);
    if (pass_ < shape_.passes) chunk_ = first_;
  }

 private:
  const PackedShape& shape_;
  const int team_, first_, end_;
  int chunk_, pass_ = 0;
  StripRange strips_;
};

// The warp that fills the ring.
template <int kRows, typename Form>
class PackedFiller {
  using Layout = PackedLayout<kRows, Form>;

 public:
  __device__ PackedFiller(const PackedMatmulArgs& args, const PackedRing<kRows, Form>& ring, const int& released)
      : args_(args),
        ring_(ring),
        released_(released),
        lane_(threadIdx.x % 32),
        once_(EvictFirst()),
        often_(EvictLast()) {}

  __device__ void Run() {
    if (kTensorMaps && lane_ == 0) {
      PrefetchMap(args_.x_map);
      AwaitTurn(args_.turns, released_);
    }
    __syncwarp();
    // Weights do not depend on earlier kernels: the ring fills while those still run.
    PackedCursor cursor(args_.shape, blockIdx.x), early = cursor;
    int num_early = 0;
    for (; num_early < ring_.stages() && !early.done(); ++num_early, early.Advance()) CopyWeights(early, num_early);
    WaitForInputs();
    // Not before: all blocks of the kernel before this one have left now, and this one has a block on each
    // multiprocessor, so that the next kernel's blocks, too, come one to a multiprocessor.
    LetDependentsStart();
    for (int stage = 0; stage < num_early; ++stage, cursor.Advance()) CopyRows(cursor, stage);
    for (PackedPlace place; !cursor.done(); cursor.Advance(), place.Advance(ring_.stages())) {
      WaitBarrier(ring_.Empty(place.stage), place.parity);
      CopyWeights(cursor, place.stage);
      CopyRows(cursor, place.stage);
    }
    if (kTensorMaps && lane_ == 0) HaveFetched(args_.turns);
  }

 private:
  __device__ void CopyWeights(const PackedCursor& unit, int stage) const {
    const StripRange strips = unit.strips();
    const uint32_t barrier = ring_.Full(stage);
    const int first_step = unit.chunk() * kChunkSteps;
    const int bytes = strips.count * min(args_.shape.steps - first_step, kChunkSteps) * Form::kStripBytes;
    const int scale_bytes = strips.count * Form::kScaleBytes;
    if (lane_ == 0) {
      if (kTensorMaps) {
        ArriveExpectBytes(barrier, bytes + scale_bytes + Layout::kRowBytes);
      } else {
        ArriveBarrier(barrier);
      }
    }
    const int64_t before = int64_t{strips.first} * args_.shape.steps + int64_t{first_step} * strips.count;
    Copy(ring_.Weights(stage), args_.weight + before * Form::kStripBytes, bytes, barrier);
    if constexpr (Form::kHasGroups) {
      const int64_t chunks = int64_t{strips.first} * args_.shape.chunks + int64_t{unit.chunk()} * strips.count;
      Copy(ring_.Scales(stage), args_.group_scales + chunks * Form::kScaleBytes, scale_bytes, barrier);
    }
  }

  __device__ void Copy(uint32_t to, const char* from, int bytes, uint32_t barrier) const {
    if (!kTensorMaps) {
      CopyBytesByLanes(to, from, bytes);
    } else if (lane_ == 0) {
      CopyBytes(to, from, bytes, barrier, once_);
    }
  }

  __device__ void CopyRows(const PackedCursor& unit, int stage) const {
    const uint32_t to = ring_.Rows(stage), barrier = ring_.Full(stage);
#pragma unroll
    for (int box = 0; box < Layout::kBoxes; ++box) {
      const int k = unit.chunk() * kChunkK + box * Layout::kBoxK;
      const uint32_t box_to = to + box * Layout::kBoxBytes;
      if (!kTensorMaps) {
        CopyBoxByLanes(box_to, reinterpret_cast<const char*>(args_.x + k), args_.x_stride * 2, kRows, args_.num_rows,
                       (args_.in_features - k) * 2);
      } else if (lane_ == 0) {
        CopyBox(box_to, args_.x_map, k, 0, barrier, often_);
      }
    }
    if (!kTensorMaps) ArriveAfterCopies(barrier);
  }

  const PackedMatmulArgs& args_;
  const PackedRing<kRows, Form>& ring_;
  const int& released_;
  const int lane_;
  const uint64_t once_, often_;
};

}  // namespace winnow::cuda
