#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/matmul_cuts.cuh"
#include "kernels/cuda/matmul_mma.cuh"
#include "kernels/cuda/matmul_ring.cuh"
#include "kernels/cuda/programmatic_launch.cuh"

// y = x W^T for up to 64 rows of x, bound by reading W once. Each block has a warp that fills a ring with boxes of W
// and x, four warps that multiply 16 output features each, and four that finish the tiles which blocks share: the last
// part of a tile to come sums them all in the order of k. Row invariance: cuts depend on the shape of W alone, and
// columns of an mma (rows of x) are independent.
namespace winnow::cuda {

// Of one multiprocessor: blocks that ever began on it, and that have fetched all they fetch. They wrap around.
struct Turns {
  uint32_t begun, fetched;
};
inline constexpr int kMaxMultiprocessors = 512;

struct DecodeMatmulArgs {
  // Boxes of 128 bytes x kTileOut rows of W, and x kRows rows of x. Unused before sm_90.
  CUtensorMap weight_map;
  CUtensorMap x_map;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const char* weight;
  const float* scales;  // null: none
  void* y;
  int64_t y_stride;
  int num_rows;
  int out_features;
  int in_features;
  bool accumulate;
  bool y_is_bf16;
  MatmulCuts cuts;
  Turns* turns;      // [kMaxMultiprocessors]
  int* counters;     // [tiles][kMultiplyWarps] parts that have come; zero between launches
  float4* partials;  // [2 * kMatmulBlocks][kMultiplyWarps][kRows / 8][32]
};

inline constexpr int kTileOut = 64;
inline constexpr int kMultiplyWarps = kTileOut / 16;
inline constexpr int kDecodeThreads = 32 * (2 * kMultiplyWarps + 1);
inline constexpr int kRingBytes = 111 * 1024;  // twice on a multiprocessor: of this kernel and of the next

// A stage is boxes of 128 bytes by kTileOut rows of W, then boxes of 128 bytes by kRows rows of x, all swizzled.
template <int kRows, bool kF8>
struct DecodeLayout {
  static constexpr int kElementBytes = kF8 ? 1 : 2;
  static constexpr int kWeightBoxes = 2;
  static constexpr int kWeightBoxK = 128 / kElementBytes;
  static constexpr int kWeightBoxBytes = kTileOut * 128;
  static constexpr int kChunkK = kWeightBoxes * kWeightBoxK;
  static constexpr int kRowBoxes = kChunkK / 64;
  static constexpr int kRowBoxBytes = kRows * 128;
  static constexpr int kWeightBytes = kWeightBoxes * kWeightBoxBytes;
  static constexpr int kStageBytes = kWeightBytes + kRowBoxes * kRowBoxBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // swizzles repeat every 1024 bytes
  static_assert(kStages >= 2);
};

// What the multiplying warps do after a unit, beside the slot to leave a part in.
enum : int { kGoOn = -1, kWriteWhole = -2 };
struct UnitTask {
  int tile;  // -1: no more
  int then;  // kGoOn, kWriteWhole, or a slot
};

// A multiplying warp hands parts of tiles to its finishing warp through a queue.
inline constexpr int kQueue = 4;
template <int kStages>
struct DecodeShared {
  uint64_t full[kStages], empty[kStages];
  uint64_t part_full[kMultiplyWarps][kQueue], part_empty[kMultiplyWarps][kQueue];
  UnitTask tasks[kStages];
  int part_tiles[kMultiplyWarps][kQueue];  // -1: no more
  int released;                            // earlier kernels have ended
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
  __device__ UnitCursor(const MatmulCuts& cuts, int block) : num_chunks_(cuts.num_chunks), block_(block) {
    const UnitRange units = UnitsOf(cuts, block);
    left_ = units.end - units.begin;
    tile_ = first_tile_ = units.begin / num_chunks_;
    chunk_ = begins_at_ = units.begin - tile_ * num_chunks_;
  }
  __device__ int left() const { return left_; }
  __device__ int tile() const { return tile_; }
  __device__ int chunk() const { return chunk_; }
  __device__ UnitTask task() const {
    const bool ends_tile = chunk_ + 1 == num_chunks_;
    if (!ends_tile && left_ > 1) return {tile_, kGoOn};
    if (ends_tile && begins_at_ == 0) return {tile_, kWriteWhole};
    return {tile_, 2 * block_ + (tile_ == first_tile_ ? 0 : 1)};
  }
  __device__ void Advance() {
    --left_;
    if (++chunk_ == num_chunks_) {
      chunk_ = 0;
      begins_at_ = 0;
      ++tile_;
    }
  }

 private:
  int num_chunks_, block_;
  int left_, tile_, chunk_, first_tile_;
  int begins_at_;  // the chunk of tile_ with which the block begins it
};

// The warp that fills the ring.
template <int kRows, bool kF8>
class RingFiller {
  using Layout = DecodeLayout<kRows, kF8>;
  using Shared = DecodeShared<Layout::kStages>;

 public:
  __device__ RingFiller(const DecodeMatmulArgs& args, Shared& shared, uint32_t ring)
      : args_(args), shared_(shared), ring_(ring), lane_(threadIdx.x % 32), once_(EvictFirst()), often_(EvictLast()) {}

  __device__ void Run() {
    if (kTensorMaps && lane_ == 0) {
      PrefetchMap(args_.weight_map);
      PrefetchMap(args_.x_map);
      AwaitTurn();
    }
    __syncwarp();
    // Weights do not depend on earlier kernels: the ring fills while those still run.
    UnitCursor cursor(args_.cuts, blockIdx.x), early = cursor;
    const int num_early = min(Layout::kStages, cursor.left());
    for (int stage = 0; stage < num_early; ++stage, early.Advance()) CopyWeights(early, stage);
    WaitForEarlierKernels();
    // Not before: all blocks of the kernel before this one have left now, and this one has a block on each
    // multiprocessor, so that the next kernel's blocks, too, come one to a multiprocessor.
    LetNextKernelStart();
    for (int stage = 0; stage < num_early; ++stage, cursor.Advance()) CopyRows(cursor, stage);
    RingPlace<Layout::kStages> place;
    if (num_early < Layout::kStages) {
      place.index = num_early;
      place.parity = 1;  // the other stages are empty: waiting for the phase before the first returns at once
    }
    for (; cursor.left() > 0; cursor.Advance(), place.Advance()) {
      WaitBarrier(SharedAddress(&shared_.empty[place.index]), place.parity);
      CopyWeights(cursor, place.index);
      CopyRows(cursor, place.index);
    }
    if (kTensorMaps && lane_ == 0) atomicAdd(&TurnsHere()->fetched, 1);
    WaitBarrier(SharedAddress(&shared_.empty[place.index]), place.parity);
    const uint32_t barrier = SharedAddress(&shared_.full[place.index]);
    if (lane_ == 0) {
      shared_.tasks[place.index] = {-1, kGoOn};
      ArriveBarrier(barrier);
    }
    if (!kTensorMaps) ArriveBarrier(barrier);
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

  __device__ void CopyWeights(const UnitCursor& unit, int stage) {
    const uint32_t to = ring_ + stage * Layout::kStageBytes, barrier = SharedAddress(&shared_.full[stage]);
    const int row = unit.tile() * kTileOut;
    if (lane_ == 0) {
      shared_.tasks[stage] = unit.task();
      if (kTensorMaps) {
        ArriveExpectBytes(barrier, Layout::kStageBytes);
      } else {
        ArriveBarrier(barrier);
      }
    }
#pragma unroll
    for (int box = 0; box < Layout::kWeightBoxes; ++box) {
      const int k = unit.chunk() * Layout::kChunkK + box * Layout::kWeightBoxK;
      const uint32_t box_to = to + box * Layout::kWeightBoxBytes;
      if (!kTensorMaps) {
        const int64_t pitch = int64_t{args_.in_features} * Layout::kElementBytes;
        CopyBoxByLanes(box_to, args_.weight + row * pitch + k * Layout::kElementBytes, pitch, kTileOut,
                       args_.out_features - row, (args_.in_features - k) * Layout::kElementBytes);
      } else if (lane_ == 0) {
        CopyBox(box_to, args_.weight_map, k, row, barrier, once_);
      }
    }
  }

  __device__ void CopyRows(const UnitCursor& unit, int stage) {
    const uint32_t to = ring_ + stage * Layout::kStageBytes + Layout::kWeightBytes;
    const uint32_t barrier = SharedAddress(&shared_.full[stage]);
#pragma unroll
    for (int box = 0; box < Layout::kRowBoxes; ++box) {
      const int k = unit.chunk() * Layout::kChunkK + box * 64;
      const uint32_t box_to = to + box * Layout::kRowBoxBytes;
      if (!kTensorMaps) {
        CopyBoxByLanes(box_to, reinterpret_cast<const char*>(args_.x + k), args_.x_stride * 2, kRows, args_.num_rows,
                       (args_.in_features - k) * 2);
      } else if (lane_ == 0) {
        CopyBox(box_to, args_.x_map, k, 0, barrier, often_);
      }
    }
    if (!kTensorMaps) ArriveAfterCopies(barrier);
  }

  const DecodeMatmulArgs& args_;
  Shared& shared_;
  const uint32_t ring_;
  const int lane_;
  const uint64_t once_, often_;
};

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
        if (args.y_is_bf16) {
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
    WaitForEarlierKernels();
    if (threadIdx.x == 0) *static_cast<volatile int*>(&shared.released) = 1;
    if (warp < kMultiplyWarps) {
      StripMultiplier<kRows, kF8>(args, shared, ring, warp).Run();
    } else {
      StripFinisher<kRows, Layout::kStages>(args, shared, warp - kMultiplyWarps).Run();
    }
  }
}

}  // namespace winnow::cuda
