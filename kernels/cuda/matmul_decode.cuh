#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/matmul_mma.cuh"
#include "kernels/cuda/matmul_ring.cuh"
#include "kernels/cuda/programmatic_launch.cuh"

// y = x W^T for up to 64 rows of x, bound by reading W once. The work is tiles of kTileOut output features times chunks
// of kChunkK input features, in tile-major order; that list is cut into equal ranges, one a block. A tile that several
// blocks share is summed by the last of them to finish, in the order of k. Cuts depend on the shape of W alone, and
// columns of an mma are independent: hence row invariance.
namespace winnow::cuda {

// The multiprocessors of an H100 or H200, one block on each. A constant, so that sums are cut the same everywhere.
inline constexpr int kMatmulBlocks = 132;

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
  int num_chunks;  // of a tile
  int num_units;   // tiles * num_chunks
  bool accumulate;
  bool y_is_bf16;
  int* counters;     // [tiles] zero between launches
  float4* partials;  // [2 * kMatmulBlocks][kTileOut * kRows / 4]
};

template <int kTileOut_, int kChunkBytes_, int kSlices_, int kStrips_, int kRingBytes_, int kLead_ = 0, int kAhead_ = 0,
          bool kContiguous_ = false>
struct DecodeGeometry {
  static constexpr bool kContiguous = kContiguous_;
  static constexpr int kTileOut = kTileOut_;        // output features of a tile
  static constexpr int kChunkBytes = kChunkBytes_;  // of a weight row in a stage
  static constexpr int kSlices = kSlices_;          // warps that share a tile's k
  static constexpr int kStrips = kStrips_;          // of 16 output features a warp
  static constexpr int kRingBytes = kRingBytes_;
  static constexpr int kLead = kLead_;    // units before the last at which the next kernel may start
  static constexpr int kAhead = kAhead_;  // units beyond the ring that the L2 fetches while earlier kernels run
  static constexpr int kWarpsAcross = kTileOut / 16 / kStrips;
  static constexpr int kConsumers = kWarpsAcross * kSlices;
  static constexpr int kThreads = 32 * (kConsumers + 1);
};

// A stage is boxes of 128 bytes by kTileOut rows of W, then boxes of 128 bytes by kRows rows of x, all swizzled.
template <typename Geometry, int kRows, bool kF8>
struct DecodeLayout {
  static constexpr int kChunkK = Geometry::kChunkBytes / (kF8 ? 1 : 2);
  static constexpr int kWeightBoxes = Geometry::kChunkBytes / 128;
  static constexpr int kWeightBoxK = kF8 ? 128 : 64;
  static constexpr int kWeightBoxBytes = Geometry::kTileOut * 128;
  static constexpr int kRowBoxes = kChunkK / 64;
  static constexpr int kRowBoxBytes = kRows * 128;
  static constexpr int kWeightBytes = kWeightBoxes * kWeightBoxBytes;
  static constexpr int kStageBytes = kWeightBytes + kRowBoxes * kRowBoxBytes;
  static constexpr int kStages = Geometry::kRingBytes / kStageBytes;
  static constexpr int kSliceBytes =
      (Geometry::kSlices - 1) * Geometry::kTileOut * kRows * 4;                    // sums of all slices but the first
  static constexpr int kSharedBytes = kStages * kStageBytes + kSliceBytes + 1024;  // swizzles repeat every 1024 bytes
  static_assert(kStages >= 2);
};

struct UnitRange {
  int begin, end;
};
__device__ inline UnitRange UnitsOf(int block, int num_blocks, int num_units) {
  return {static_cast<int>(int64_t{num_units} * block / num_blocks),
          static_cast<int>(int64_t{num_units} * (block + 1) / num_blocks)};
}
__device__ inline int BlockOf(int unit, int num_blocks, int num_units) {
  return static_cast<int>((int64_t{unit + 1} * num_blocks - 1) / num_units);
}

// The warp that fills the ring.
template <typename Geometry, int kRows, bool kF8>
__device__ void FillRing(const DecodeMatmulArgs& args, UnitRange units, uint32_t ring, uint32_t full, uint32_t empty) {
  using Layout = DecodeLayout<Geometry, kRows, kF8>;
  constexpr int kStages = Layout::kStages;
  if (kTensorMaps && threadIdx.x % 32 != 0) return;
  if (kTensorMaps) {
    PrefetchMap(args.weight_map);
    PrefetchMap(args.x_map);
  }
  const uint64_t once = EvictFirst(), often = EvictLast();

  const auto copy_weights = [&](int unit, int stage) {
    const int row = unit / args.num_chunks * Geometry::kTileOut;
    const int k = unit % args.num_chunks * Layout::kChunkK;
    const uint32_t to = ring + stage * Layout::kStageBytes, barrier = full + 8 * stage;
    if (kTensorMaps) ArriveExpectBytes(barrier, Layout::kStageBytes);
    if constexpr (Geometry::kContiguous) {
      CopyToShared(to, args.weight + int64_t{unit} * Layout::kWeightBytes, Layout::kWeightBytes, barrier, once);
      return;
    }
#pragma unroll
    for (int box = 0; box < Layout::kWeightBoxes; ++box) {
      const int box_k = k + box * Layout::kWeightBoxK, box_to = to + box * Layout::kWeightBoxBytes;
      if (kTensorMaps) {
        CopyBox(box_to, args.weight_map, box_k, row, barrier, once);
      } else {
        constexpr int kElementBytes = kF8 ? 1 : 2;
        const int64_t pitch = int64_t{args.in_features} * kElementBytes;
        CopyBoxByLanes(box_to, args.weight + row * pitch + box_k * kElementBytes, pitch, Geometry::kTileOut,
                       args.out_features - row, (args.in_features - box_k) * kElementBytes);
      }
    }
  };
  const auto copy_rows = [&](int unit, int stage) {
    const int k = unit % args.num_chunks * Layout::kChunkK;
    const uint32_t to = ring + stage * Layout::kStageBytes + Layout::kWeightBytes, barrier = full + 8 * stage;
#pragma unroll
    for (int box = 0; box < Layout::kRowBoxes; ++box) {
      const int box_k = k + box * 64, box_to = to + box * Layout::kRowBoxBytes;
      if (kTensorMaps) {
        CopyBox(box_to, args.x_map, box_k, 0, barrier, often);
      } else {
        CopyBoxByLanes(box_to, reinterpret_cast<const char*>(args.x + box_k), args.x_stride * 2, kRows, args.num_rows,
                       (args.in_features - box_k) * 2);
      }
    }
    if (!kTensorMaps) ArriveAfterCopies(barrier);
  };
  const auto prefetch_weights = [&](int unit) {
    for (int box = 0; kTensorMaps && box < Layout::kWeightBoxes; ++box) {
      PrefetchBox(args.weight_map, unit % args.num_chunks * Layout::kChunkK + box * Layout::kWeightBoxK,
                  unit / args.num_chunks * Geometry::kTileOut);
    }
  };

  const int count = units.end - units.begin;
  // Weights do not depend on earlier kernels: the ring fills while those still run.
  for (int i = 0; i < min(kStages, count); ++i) copy_weights(units.begin + i, i);
  for (int i = kStages; i < min(kStages + Geometry::kAhead, count); ++i) prefetch_weights(units.begin + i);
  WaitForEarlierKernels();
  // Not before: all blocks of the kernel before this one have left then, and this one has a block on each
  // multiprocessor, so that the next kernel's blocks, too, come one to a multiprocessor.
  if (Geometry::kLead == 0) LetNextKernelStart();
  for (int i = 0; i < min(kStages, count); ++i) copy_rows(units.begin + i, i);
  int stage = 0;
  uint32_t parity = 0;
  for (int i = kStages; i < count; ++i) {
    WaitBarrier(empty + 8 * stage, parity);
    copy_weights(units.begin + i, stage);
    copy_rows(units.begin + i, stage);
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (Geometry::kLead != 0) LetNextKernelStart();
}

template <typename Geometry, int kRows>
struct TileSums {
  float values[Geometry::kStrips][kRows / 8][4];
};

template <typename Geometry, int kRows, bool kF8>
__device__ void MultiplyChunk(TileSums<Geometry, kRows>& sums, uint32_t weights, uint32_t rows) {
  using Layout = DecodeLayout<Geometry, kRows, kF8>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int across = warp % Geometry::kWarpsAcross, slice = warp / Geometry::kWarpsAcross;
  // The swizzle: which piece of its row a lane reads, but for bits that the step in k flips.
  const uint32_t weight_lane = weights + (across * Geometry::kStrips * 16 + lane % 16) * 128;
  const uint32_t weight_piece = ((lane / 16) ^ (lane % 8)) * 16;
  const uint32_t row_lane = rows + lane % 8 * 128;
  const uint32_t row_piece = ((lane / 8) ^ (lane % 8)) * 16;
#pragma unroll
  for (int block = 0; block < Layout::kChunkK / 32 / Geometry::kSlices; ++block) {
    const int k32 = Geometry::kSlices == 1 ? block : block * Geometry::kSlices + slice;
    uint32_t a[Geometry::kStrips][2][4];
#pragma unroll
    for (int strip = 0; strip < Geometry::kStrips; ++strip) {
      const uint32_t box = weight_lane + strip * 16 * 128 + k32 / (kF8 ? 4 : 2) * Layout::kWeightBoxBytes;
      if constexpr (kF8) {
        uint32_t bytes[4];
        LoadMatrices(bytes, box + (weight_piece ^ (k32 % 4 * 32)));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          UnpackF8(bytes[2 * step], a[strip][step][0], a[strip][step][2]);
          UnpackF8(bytes[2 * step + 1], a[strip][step][1], a[strip][step][3]);
        }
      } else {
        LoadMatrices(a[strip][0], box + (weight_piece ^ (k32 % 2 * 64)));
        LoadMatrices(a[strip][1], box + (weight_piece ^ (k32 % 2 * 64 + 32)));
      }
    }
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) {
      uint32_t b[4];
      LoadMatrices(b, row_lane + k32 / 2 * Layout::kRowBoxBytes + column * 8 * 128 + (row_piece ^ (k32 % 2 * 64)));
#pragma unroll
      for (int strip = 0; strip < Geometry::kStrips; ++strip) {
        MultiplyAccumulate(sums.values[strip][column], a[strip][0], b[0], b[1]);
        MultiplyAccumulate(sums.values[strip][column], a[strip][1], b[2], b[3]);
      }
    }
  }
}

template <int kThreads>
__device__ inline void SyncConsumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

template <typename Geometry, int kRows>
__device__ void WriteTile(const DecodeMatmulArgs& args, int tile, const TileSums<Geometry, kRows>& sums) {
  const int lane = threadIdx.x % 32, across = threadIdx.x / 32 % Geometry::kWarpsAcross;
#pragma unroll
  for (int strip = 0; strip < Geometry::kStrips; ++strip) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int out = tile * Geometry::kTileOut + (across * Geometry::kStrips + strip) * 16 + half * 8 + lane / 4;
      if (out >= args.out_features) continue;
      const float scale = args.scales != nullptr ? args.scales[out] : 1.0f;
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int row = column * 8 + lane % 4 * 2 + odd;
          if (row >= args.num_rows) continue;
          const float value = sums.values[strip][column][half * 2 + odd] * scale;
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
}

// The blocks that share a tile.
struct Sharers {
  int first, last;
};
template <typename Geometry>
__device__ Sharers SharersOf(const DecodeMatmulArgs& args, int tile) {
  return {BlockOf(tile * args.num_chunks, gridDim.x, args.num_units),
          BlockOf((tile + 1) * args.num_chunks - 1, gridDim.x, args.num_units)};
}

// Sums a tile's parts in the order of its blocks. Whoever comes last does it and gets true; the others leave their part
// in memory. `arrived_before` is what the tile's counter held some time ago: if only this block was missing, its part
// need not go through memory.
template <typename Geometry, int kRows>
__device__ bool SumWithOtherBlocks(const DecodeMatmulArgs& args, Sharers sharers, int tile, bool units_end,
                                   int arrived_before, int* arrived, TileSums<Geometry, kRows>& sums) {
  constexpr int kColumns = kRows / 8;
  constexpr int kSlotFloat4s = Geometry::kTileOut * kRows / 4;
  const int num_blocks = gridDim.x, block = blockIdx.x, others = sharers.last - sharers.first;
  if (others == 0) return true;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool has_sums = warp < Geometry::kWarpsAcross;
  // A block shares at most its first and its last tile with others.
  const auto slot_of = [&](int other) {
    const int first_tile = UnitsOf(other, num_blocks, args.num_units).begin / args.num_chunks;
    return args.partials + (2 * other + (tile == first_tile ? 0 : 1)) * kSlotFloat4s + lane;
  };
  bool is_last = false;
  if (units_end) {
    if (threadIdx.x == 0) arrived[1] = arrived_before;
    SyncConsumers<Geometry::kConsumers * 32>();
    is_last = arrived[1] == others;
  }
  if (!is_last) {
    if (has_sums) {
      float4* slot = slot_of(block);
#pragma unroll
      for (int strip = 0; strip < Geometry::kStrips; ++strip) {
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          const float(&v)[4] = sums.values[strip][column];
          __stcg(slot + ((warp * Geometry::kStrips + strip) * kColumns + column) * 32,
                 make_float4(v[0], v[1], v[2], v[3]));
        }
      }
    }
    __threadfence();
    SyncConsumers<Geometry::kConsumers * 32>();
    if (threadIdx.x == 0) *arrived = atomicAdd(args.counters + tile, 1);
    SyncConsumers<Geometry::kConsumers * 32>();
    if (*arrived != others) return false;
  }
  __threadfence();
  if (threadIdx.x == 0) args.counters[tile] = 0;
  if (!has_sums) return true;
  TileSums<Geometry, kRows> total = {};
  for (int other = sharers.first; other <= sharers.last; ++other) {
    const float4* slot = slot_of(other);
#pragma unroll
    for (int strip = 0; strip < Geometry::kStrips; ++strip) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const float(&own)[4] = sums.values[strip][column];
        const float4 v = other == block ? make_float4(own[0], own[1], own[2], own[3])
                                        : __ldcg(slot + ((warp * Geometry::kStrips + strip) * kColumns + column) * 32);
        float(&sum)[4] = total.values[strip][column];
        sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
      }
    }
  }
  sums = total;
  return true;
}

// Adds the slices' sums into those of the first, in order.
template <typename Geometry, int kRows>
__device__ void SumSlices(float4* shared, TileSums<Geometry, kRows>& sums) {
  if constexpr (Geometry::kSlices > 1) {
    constexpr int kColumns = kRows / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int across = warp % Geometry::kWarpsAcross, slice = warp / Geometry::kWarpsAcross;
    const auto place = [&](int of_slice, int strip, int column) {
      return shared +
             ((((of_slice - 1) * Geometry::kWarpsAcross + across) * Geometry::kStrips + strip) * kColumns + column) *
                 32 +
             lane;
    };
    if (slice > 0) {
#pragma unroll
      for (int strip = 0; strip < Geometry::kStrips; ++strip) {
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          const float(&v)[4] = sums.values[strip][column];
          *place(slice, strip, column) = make_float4(v[0], v[1], v[2], v[3]);
        }
      }
    }
    SyncConsumers<Geometry::kConsumers * 32>();
    if (slice == 0) {
#pragma unroll
      for (int strip = 0; strip < Geometry::kStrips; ++strip) {
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          float(&sum)[4] = sums.values[strip][column];
          for (int other = 1; other < Geometry::kSlices; ++other) {
            const float4 v = *place(other, strip, column);
            sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
          }
        }
      }
    }
    SyncConsumers<Geometry::kConsumers * 32>();  // the place is free for the next tile
  }
}

// Grid: min(kMatmulBlocks, num_units) blocks of kConsumers warps that multiply and one that copies.
template <typename Geometry, int kRows, bool kF8>
__global__ void __launch_bounds__(Geometry::kThreads, 2)
    DecodeMatmulKernel(const __grid_constant__ DecodeMatmulArgs args) {
  using Layout = DecodeLayout<Geometry, kRows, kF8>;
  constexpr int kStages = Layout::kStages;
  extern __shared__ unsigned char unaligned[];
  unsigned char* const shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  __shared__ uint64_t barriers[2 * kStages];
  __shared__ int arrived[2];
  const uint32_t ring = SharedAddress(shared);
  const uint32_t full = SharedAddress(barriers), empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const UnitRange units = UnitsOf(blockIdx.x, gridDim.x, args.num_units);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(full + 8 * stage, kTensorMaps ? 1 : 32);
      InitBarrier(empty + 8 * stage, Geometry::kConsumers);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (warp == Geometry::kConsumers) {
    FillRing<Geometry, kRows, kF8>(args, units, ring, full, empty);
    return;
  }

  WaitForEarlierKernels();
  TileSums<Geometry, kRows> sums = {};
  int arrived_before = 0;
  int stage = 0;
  uint32_t parity = 0;
  for (int unit = units.begin; unit < units.end; ++unit) {
    const int tile = unit / args.num_chunks, chunk = unit % args.num_chunks;
    // Asked for a little early, as the answer takes long. Only the last tile of a block can wait for nobody else.
    if (threadIdx.x == 0 && unit == units.end - 2) {
      arrived_before = *reinterpret_cast<volatile int*>(args.counters + (units.end - 1) / args.num_chunks);
    }
    WaitBarrier(full + 8 * stage, parity);
    const uint32_t weights = ring + stage * Layout::kStageBytes;
    MultiplyChunk<Geometry, kRows, kF8>(sums, weights, weights + Layout::kWeightBytes);
    __syncwarp();
    if (lane == 0) ArriveBarrier(empty + 8 * stage);
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    if (chunk + 1 < args.num_chunks && unit + 1 < units.end) continue;
    SumSlices<Geometry, kRows>(reinterpret_cast<float4*>(shared + kStages * Layout::kStageBytes), sums);
    if (SumWithOtherBlocks<Geometry, kRows>(args, SharersOf<Geometry>(args, tile), tile, unit + 1 == units.end,
                                            arrived_before, arrived, sums) &&
        warp < Geometry::kWarpsAcross) {
      WriteTile<Geometry, kRows>(args, tile, sums);
    }
    sums = {};
  }
}

}  // namespace winnow::cuda
