#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/matmul_cuts.h"
#include "kernels/cuda/matmul_mma.cuh"
#include "kernels/cuda/matmul_ring.cuh"
#include "kernels/cuda/programmatic_launch.cuh"

// y = x W^T for up to 64 rows of x, bound by reading W once. Each block has a warp that fills a ring with boxes of W
// and x, and eight that multiply. Row invariance: cuts depend on the shape of W alone, and columns of an mma (rows of
// x) are independent.
namespace winnow::cuda {

struct DecodeMatmulArgs {
  // Boxes of 128 bytes by tile_out rows of W, and by kRows rows of x. Unused before sm_90.
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
  int num_boxes;              // of 128 bytes of each row of W in a stage
  int num_chunks;             // stages to a tile
  bool has_whole_boxes;       // the maps are of three dimensions: 128 bytes, rows, boxes
  unsigned long long* turns;  // [kMaxMultiprocessors] blocks that began (high half) and that fetched all (low), ever
};

inline constexpr int kMaxMultiprocessors = 512;
inline constexpr int kDecodeThreads = 32 * (kMultiplyWarps + 1);
inline constexpr int kMaxStages = 16;
// Of a block, so that a multiprocessor holds one of this kernel and one of the next: half of 228 KB, less what the
// system and the barriers take.
inline constexpr int kDynamicSharedBytes = 112 * 1024;

// A stage is boxes of 128 bytes by tile_out rows of W, then boxes of 128 bytes by kRows rows of x, all swizzled.
template <int kRows, bool kF8>
struct DecodeLayout {
  static constexpr int kElementBytes = kF8 ? 1 : 2;
  static constexpr int kBoxK = 128 / kElementBytes;  // of a box of W
  static constexpr int kRowBoxesPerBox = kBoxK / 64;
  static constexpr int kRowBoxBytes = kRows * 128;
  static constexpr int kSliceBytes = 4 * 16 * kRows * 4;  // sums that pass between warps: of at most four strips
  // Swizzles repeat every 1024 bytes; a half strip reads 1024 bytes beyond its box.
  static constexpr int kRingBytes = kDynamicSharedBytes - kSliceBytes - 2048;

  __host__ __device__ static constexpr int StageBytes(int tile_out, int num_boxes) {
    return num_boxes * (tile_out * 128 + kRowBoxesPerBox * kRowBoxBytes);
  }
  __host__ __device__ static constexpr int NumStages(int tile_out, int num_boxes) {
    const int stages = kRingBytes / StageBytes(tile_out, num_boxes);
    return stages < kMaxStages ? stages : kMaxStages;
  }
  // Of W in a stage. Large copies, as each costs the copying warp about 100 cycles, and enough stages.
  __host__ static constexpr int NumBoxes(int tile_out) {
    return NumStages(tile_out, 4) >= 4 ? 4 : NumStages(tile_out, 2) >= 3 ? 2 : 1;
  }
};

struct DecodeBarriers {
  uint64_t full[kMaxStages], empty[kMaxStages];
};

// Place in the ring, and the parity of the barriers' phase.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void Advance(int num_stages) {
    if (++stage == num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The tiles of this block, [begin, end).
struct TileRange {
  int begin, end;
};
__device__ inline TileRange TilesOf(const DecodeMatmulArgs& args) {
  const int num_tiles = (args.out_features + args.cuts.tile_out - 1) / args.cuts.tile_out;
  const int begin = blockIdx.x * args.cuts.tiles_per_block;
  return {begin, min(begin + args.cuts.tiles_per_block, num_tiles)};
}

// The warp that fills the ring.
template <int kRows, bool kF8>
class RingFiller {
  using Layout = DecodeLayout<kRows, kF8>;

 public:
  __device__ RingFiller(const DecodeMatmulArgs& args, DecodeBarriers& barriers, uint32_t ring)
      : args_(args),
        barriers_(barriers),
        ring_(ring),
        lane_(threadIdx.x % 32),
        tiles_(TilesOf(args)),
        stage_bytes_(Layout::StageBytes(args.cuts.tile_out, args.num_boxes)),
        once_(EvictFirst()),
        often_(EvictLast()) {}

  __device__ void Run() {
    if (kTensorMaps && lane_ == 0) {
      PrefetchMap(args_.weight_map);
      PrefetchMap(args_.x_map);
      AwaitTurn();
    }
    __syncwarp();
    // Weights do not depend on earlier kernels: the ring fills while those end.
    const int num_stages = Layout::NumStages(args_.cuts.tile_out, args_.num_boxes);
    const int count = (tiles_.end - tiles_.begin) * args_.num_chunks, num_early = min(num_stages, count);
    Unit early = {tiles_.begin, 0}, unit = early;
    for (int stage = 0; stage < num_early; ++stage, Advance(early)) CopyWeights(early, stage);
    WaitForEarlierKernels();
    // Not before: all blocks of the kernel before this one have left now, and this one has a block on each
    // multiprocessor, so that the next kernel's blocks, too, come one to a multiprocessor.
    LetNextKernelStart();
    for (int stage = 0; stage < num_early; ++stage, Advance(unit)) CopyRows(unit, stage);
    RingPlace place;
    for (int i = num_early; i < count; ++i, Advance(unit), place.Advance(num_stages)) {
      WaitBarrier(SharedAddress(&barriers_.empty[place.stage]), place.parity);
      CopyWeights(unit, place.stage);
      CopyRows(unit, place.stage);
    }
    if (kTensorMaps && lane_ == 0) atomicAdd(Turns(), 1ull);
  }

 private:
  // A block that came early (of the next kernel) fetches nothing until the one that runs on its multiprocessor has
  // fetched all: earlier, it would take bandwidth; later, at the change of kernels, the memory would idle.
  __device__ void AwaitTurn() const {
    unsigned long long* const turns = Turns();
    const unsigned long long at = atomicAdd(turns, 1ull << 32);
    const uint32_t begun_before = at >> 32;
    uint32_t done = static_cast<uint32_t>(at);
    while (static_cast<int>(done - begun_before) < 0) {
      done = static_cast<uint32_t>(*static_cast<volatile unsigned long long*>(turns));
    }
  }
  __device__ unsigned long long* Turns() const {
    uint32_t multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    return args_.turns + multiprocessor % kMaxMultiprocessors;
  }

  struct Unit {
    int tile, chunk;
  };
  __device__ void Advance(Unit& unit) const {
    if (++unit.chunk == args_.num_chunks) {
      unit.chunk = 0;
      ++unit.tile;
    }
  }

  __device__ void CopyWeights(const Unit& unit, int stage) const {
    const uint32_t to = ring_ + stage * stage_bytes_, barrier = SharedAddress(&barriers_.full[stage]);
    const int row = unit.tile * args_.cuts.tile_out, box = unit.chunk * args_.num_boxes;
    if (kTensorMaps && lane_ == 0) {
      ArriveExpectBytes(barrier, stage_bytes_);
      if (args_.has_whole_boxes) CopyBoxes(to, args_.weight_map, box, row, barrier, once_);
    }
    if (kTensorMaps && args_.has_whole_boxes) return;
    for (int i = 0; i < args_.num_boxes; ++i) {
      const int k = (box + i) * Layout::kBoxK;
      const uint32_t box_to = to + i * args_.cuts.tile_out * 128;
      if (!kTensorMaps) {
        const int64_t pitch = int64_t{args_.in_features} * Layout::kElementBytes;
        CopyBoxByLanes(box_to, args_.weight + row * pitch + k * Layout::kElementBytes, pitch, args_.cuts.tile_out,
                       args_.out_features - row, (args_.in_features - k) * Layout::kElementBytes);
      } else if (lane_ == 0) {
        CopyBox(box_to, args_.weight_map, k, row, barrier, once_);
      }
    }
  }

  __device__ void CopyRows(const Unit& unit, int stage) const {
    const uint32_t to = ring_ + stage * stage_bytes_ + args_.num_boxes * args_.cuts.tile_out * 128;
    const uint32_t barrier = SharedAddress(&barriers_.full[stage]);
    const int num_boxes = args_.num_boxes * Layout::kRowBoxesPerBox, box = unit.chunk * num_boxes;
    if (kTensorMaps && args_.has_whole_boxes) {
      if (lane_ == 0) CopyBoxes(to, args_.x_map, box, 0, barrier, often_);
      return;
    }
    for (int i = 0; i < num_boxes; ++i) {
      const int k = (box + i) * 64;
      const uint32_t box_to = to + i * Layout::kRowBoxBytes;
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
  DecodeBarriers& barriers_;
  const uint32_t ring_;
  const int lane_;
  const TileRange tiles_;
  const int stage_bytes_;
  const uint64_t once_, often_;
};

// Of 16 output features and kRows rows, as mma leaves them in the lanes of a warp: [column][half * 2 + odd] is output
// feature 8 * half + lane / 4 of the strip and row 8 * column + 2 * (lane % 4) + odd.
template <int kRows>
struct StripSums {
  float values[kRows / 8][4];
};

// One of the warps that multiply: a strip of each tile of the block, and a slice of the k of each chunk.
template <int kRows, bool kF8>
class StripMultiplier {
  using Layout = DecodeLayout<kRows, kF8>;
  // Old values of y are fetched before they are needed where there are registers for them.
  static constexpr bool kFetchesEarly = kRows <= 32;

 public:
  __device__ StripMultiplier(const DecodeMatmulArgs& args, DecodeBarriers& barriers, uint32_t ring, float4* slice_sums)
      : args_(args),
        barriers_(barriers),
        ring_(ring),
        slice_sums_(slice_sums),
        lane_(threadIdx.x % 32),
        strip_(threadIdx.x / 32 % args.cuts.num_strips),
        slice_(threadIdx.x / 32 / args.cuts.num_strips) {}

  __device__ void Run() {
    if (slice_ >= args_.cuts.num_slices) return;
    WaitForEarlierKernels();
    const TileRange tiles = TilesOf(args_);
    const int num_stages = Layout::NumStages(args_.cuts.tile_out, args_.num_boxes);
    const int stage_bytes = Layout::StageBytes(args_.cuts.tile_out, args_.num_boxes);
    RingPlace place;
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      StripSums<kRows> sums = {}, old = {};
      if (kFetchesEarly && args_.accumulate && slice_ == 0) old = FetchOld(tile);
      for (int chunk = 0; chunk < args_.num_chunks; ++chunk, place.Advance(num_stages)) {
        WaitBarrier(SharedAddress(&barriers_.full[place.stage]), place.parity);
        Multiply(sums, ring_ + place.stage * stage_bytes, chunk);
        __syncwarp();
        if (lane_ == 0) ArriveBarrier(SharedAddress(&barriers_.empty[place.stage]));
      }
      SumSlices(sums);
      if (slice_ > 0) continue;
      if (!kFetchesEarly && args_.accumulate) old = FetchOld(tile);
      Write(tile, sums, old);
    }
  }

 private:
  __device__ void Multiply(StripSums<kRows>& sums, uint32_t weights, int chunk) const {
    // The swizzle: which piece of its row a lane reads, but for bits that the step in k flips.
    const uint32_t weight_lane = weights + (strip_ * 16 + lane_ % 16) * 128;
    const uint32_t weight_piece = ((lane_ / 16) ^ (lane_ % 8)) * 16;
    const int box_bytes = args_.cuts.tile_out * 128, count = args_.num_boxes * (kF8 ? 4 : 2);
    const uint32_t row_lane = weights + args_.num_boxes * box_bytes + lane_ % 8 * 128;
    const uint32_t row_piece = ((lane_ / 8) ^ (lane_ % 8)) * 16;
    // Every num_slices-th step of the whole k is this warp's, wherever chunks begin: those depend on kRows.
    const int num_slices = args_.cuts.num_slices;
#pragma unroll(kRows <= 16 ? 4 : 2)
    for (int k32 = (slice_ - chunk * count) & (num_slices - 1); k32 < count; k32 += num_slices) {
      const uint32_t box = weight_lane + k32 / (kF8 ? 4 : 2) * box_bytes;
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

  // Adds the slices' sums to those of the first, in order.
  __device__ void SumSlices(StripSums<kRows>& sums) const {
    const int num_slices = args_.cuts.num_slices, num_strips = args_.cuts.num_strips;
    if (num_slices == 1) return;
    const auto place = [&](int slice, int column) -> float4& {
      return slice_sums_[(((slice - 1) * num_strips + strip_) * (kRows / 8) + column) * 32 + lane_];
    };
    if (slice_ > 0) {
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
        const float(&v)[4] = sums.values[column];
        place(slice_, column) = make_float4(v[0], v[1], v[2], v[3]);
      }
    }
    SyncSlices();
    if (slice_ == 0) {
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
        float(&sum)[4] = sums.values[column];
        for (int slice = 1; slice < num_slices; ++slice) {
          const float4 v = place(slice, column);
          sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
      }
    }
    if (args_.cuts.tiles_per_block > 1) SyncSlices();  // the next tile's sums may come
  }
  __device__ void SyncSlices() const {
    asm volatile("bar.sync 1, %0;" ::"r"(args_.cuts.num_strips * args_.cuts.num_slices * 32) : "memory");
  }

  // Calls visit(column, index, row, output feature) for what exists of the strip.
  template <typename Visit>
  __device__ void ForEach(int tile, const Visit& visit) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = strip_ * 16 + half * 8 + lane_ / 4;
      const int out = tile * args_.cuts.tile_out + in_tile;
      if (in_tile >= args_.cuts.tile_out || out >= args_.out_features) continue;
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int row = column * 8 + lane_ % 4 * 2 + odd;
          if (row < args_.num_rows) visit(column, half * 2 + odd, row, out);
        }
      }
    }
  }
  __device__ StripSums<kRows> FetchOld(int tile) const {
    StripSums<kRows> old = {};
    const float* y = static_cast<const float*>(args_.y);
    ForEach(tile, [&](int column, int i, int row, int out) { old.values[column][i] = y[row * args_.y_stride + out]; });
    return old;
  }
  __device__ void Write(int tile, const StripSums<kRows>& sums, const StripSums<kRows>& old) const {
    ForEach(tile, [&](int column, int i, int row, int out) {
      const float scale = args_.scales != nullptr ? __ldg(args_.scales + out) : 1.0f;
      const float value = __fmul_rn(sums.values[column][i], scale);
      const int64_t at = row * args_.y_stride + out;
      if (args_.y_is_bf16) {
        static_cast<__nv_bfloat16*>(args_.y)[at] = __float2bfloat16(value);
      } else {
        static_cast<float*>(args_.y)[at] = args_.accumulate ? old.values[column][i] + value : value;
      }
    });
  }

  const DecodeMatmulArgs& args_;
  DecodeBarriers& barriers_;
  const uint32_t ring_;
  float4* const slice_sums_;
  const int lane_, strip_, slice_;
};

// Grid: cuts.num_blocks.
template <int kRows, bool kF8>
__global__ void __launch_bounds__(kDecodeThreads, 2) DecodeMatmulKernel(const __grid_constant__ DecodeMatmulArgs args) {
  using Layout = DecodeLayout<kRows, kF8>;
  extern __shared__ unsigned char unaligned[];
  __shared__ DecodeBarriers barriers;
  const uint32_t to_boundary = (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const uint32_t ring = SharedAddress(unaligned) + to_boundary;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Layout::NumStages(args.cuts.tile_out, args.num_boxes); ++stage) {
      InitBarrier(SharedAddress(&barriers.full[stage]), kTensorMaps ? 1 : 32);
      InitBarrier(SharedAddress(&barriers.empty[stage]), args.cuts.num_strips * args.cuts.num_slices);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x / 32 == kMultiplyWarps) {
    RingFiller<kRows, kF8>(args, barriers, ring).Run();
  } else {
    float4* const slice_sums = reinterpret_cast<float4*>(unaligned + to_boundary + Layout::kRingBytes + 1024);
    StripMultiplier<kRows, kF8>(args, barriers, ring, slice_sums).Run();
  }
}

}  // namespace winnow::cuda
