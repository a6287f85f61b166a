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

template <int kTileOut_, int kChunkBytes_, int kSlices_, int kStrips_, int kRingBytes_>
struct DecodeGeometry {
  static constexpr int kTileOut = kTileOut_;        // output features of a tile
  static constexpr int kChunkBytes = kChunkBytes_;  // of a weight row in a stage
  static constexpr int kSlices = kSlices_;          // warps that share a tile's k
  static constexpr int kStrips = kStrips_;          // of 16 output features a warp
  static constexpr int kRingBytes = kRingBytes_;
  static constexpr int kWarpsAcross = kTileOut / 16 / kStrips;
  static constexpr int kConsumers = kWarpsAcross * kSlices;
  static constexpr int kThreads = 32 * (kConsumers + 1);
};

template <typename Geometry, int kRows, bool kF8>
struct DecodeLayout {
  static constexpr int kChunkK = Geometry::kChunkBytes / (kF8 ? 1 : 2);
  // Rows are 16 bytes apart modulo 128, so that the eight rows of a matrix lie in different banks.
  static constexpr int kWeightPitch = Geometry::kChunkBytes + 16;
  static constexpr int kRowPitch = kChunkK * 2 + 16;
  static constexpr int kWeightBytes = Geometry::kTileOut * kWeightPitch;
  static constexpr int kStageBytes = kWeightBytes + kRows * kRowPitch;
  static constexpr int kStages = Geometry::kRingBytes / kStageBytes;
  static constexpr int kSliceBytes =
      (Geometry::kSlices - 1) * Geometry::kTileOut * kRows * 4;  // sums of all slices but the first
  static constexpr int kSharedBytes = kStages * kStageBytes + kSliceBytes;
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
  const int lane = threadIdx.x % 32;
  const uint64_t once = EvictFirst(), often = EvictLast();
  const int64_t weight_row_bytes = int64_t{args.in_features} * (kF8 ? 1 : 2);

  const auto copy_weights = [&](int unit, int stage) {
    const int tile = unit / args.num_chunks, chunk = unit % args.num_chunks;
    const int k = min(Layout::kChunkK, args.in_features - chunk * Layout::kChunkK);
    const int rows = min(Geometry::kTileOut, args.out_features - tile * Geometry::kTileOut);
    const uint32_t bytes = k * (kF8 ? 1 : 2);
    if (kBulkCopies && lane == 0) ArriveExpectBytes(full + 8 * stage, rows * bytes + args.num_rows * k * 2);
    __syncwarp();
    const char* from =
        args.weight + int64_t{tile} * Geometry::kTileOut * weight_row_bytes + int64_t{chunk} * Geometry::kChunkBytes;
    const uint32_t to = ring + stage * Layout::kStageBytes;
#pragma unroll
    for (int row = lane; row < Geometry::kTileOut; row += 32) {
      if (row >= rows) break;
      CopyToShared(to + row * Layout::kWeightPitch, from + row * weight_row_bytes, bytes, full + 8 * stage, once);
    }
  };
  const auto copy_rows = [&](int unit, int stage) {
    const int chunk = unit % args.num_chunks;
    const int k = min(Layout::kChunkK, args.in_features - chunk * Layout::kChunkK);
    const uint32_t to = ring + stage * Layout::kStageBytes + Layout::kWeightBytes;
    for (int row = lane; row < args.num_rows; row += 32) {
      CopyToShared(to + row * Layout::kRowPitch, args.x + row * args.x_stride + chunk * Layout::kChunkK, k * 2,
                   full + 8 * stage, often);
    }
    if (!kBulkCopies) ArriveAfterCopies(full + 8 * stage);
  };

  // Weights do not depend on earlier kernels: the ring fills while those still run.
  const int count = units.end - units.begin;
  for (int i = 0; i < min(kStages, count); ++i) copy_weights(units.begin + i, i);
  WaitForEarlierKernels();
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
  // From here on the memory idles more and more: the next kernel may fill its ring.
  LetNextKernelStart();
}

template <typename Geometry, int kRows>
struct TileSums {
  float values[Geometry::kStrips][kRows / 8][4];
};

template <typename Geometry, int kRows, bool kF8>
__device__ void MultiplyChunk(TileSums<Geometry, kRows>& sums, uint32_t weights, uint32_t rows, int k) {
  using Layout = DecodeLayout<Geometry, kRows, kF8>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int across = warp % Geometry::kWarpsAcross, slice = warp / Geometry::kWarpsAcross;
  const uint32_t weight_lane =
      weights + (across * Geometry::kStrips * 16 + lane % 16) * Layout::kWeightPitch + lane / 16 * 16;
  const uint32_t row_lane = rows + lane % 8 * Layout::kRowPitch + lane / 8 * 16;
#pragma unroll
  for (int block = 0; block < Layout::kChunkK / 32 / Geometry::kSlices; ++block) {
    const int k32 = block * Geometry::kSlices + slice;
    if (k32 * 32 >= k) break;
    uint32_t a[Geometry::kStrips][2][4];
#pragma unroll
    for (int strip = 0; strip < Geometry::kStrips; ++strip) {
      const uint32_t address = weight_lane + strip * 16 * Layout::kWeightPitch + k32 * (kF8 ? 32 : 64);
      if constexpr (kF8) {
        uint32_t bytes[4];
        LoadMatrices(bytes, address);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          UnpackF8(bytes[2 * step], a[strip][step][0], a[strip][step][2]);
          UnpackF8(bytes[2 * step + 1], a[strip][step][1], a[strip][step][3]);
        }
      } else {
        LoadMatrices(a[strip][0], address);
        LoadMatrices(a[strip][1], address + 32);
      }
    }
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) {
      uint32_t b[4];
      LoadMatrices(b, row_lane + column * 8 * Layout::kRowPitch + k32 * 64);
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

// Leaves this block's part of a shared tile in memory; the last block of the tile to come gets the sum of all, and
// true.
template <typename Geometry, int kRows>
__device__ bool SumWithOtherBlocks(const DecodeMatmulArgs& args, UnitRange units, int tile, int* arrived,
                                   TileSums<Geometry, kRows>& sums) {
  constexpr int kColumns = kRows / 8;
  constexpr int kSlotFloat4s = Geometry::kTileOut * kRows / 4;
  const int num_blocks = gridDim.x, block = blockIdx.x;
  const int first = BlockOf(tile * args.num_chunks, num_blocks, args.num_units);
  const int last = BlockOf((tile + 1) * args.num_chunks - 1, num_blocks, args.num_units);
  if (first == last) return true;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool has_sums = warp < Geometry::kWarpsAcross;
  // A block shares at most its first and its last tile with others.
  const auto slot_of = [&](int other) {
    const int first_tile = UnitsOf(other, num_blocks, args.num_units).begin / args.num_chunks;
    return args.partials + (2 * other + (tile == first_tile ? 0 : 1)) * kSlotFloat4s + lane;
  };
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
  if (*arrived != last - first) return false;
  __threadfence();
  if (threadIdx.x == 0) args.counters[tile] = 0;
  if (!has_sums) return true;
  sums = {};
  for (int other = first; other <= last; ++other) {
    const float4* slot = slot_of(other);
#pragma unroll
    for (int strip = 0; strip < Geometry::kStrips; ++strip) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const float4 v = __ldcg(slot + ((warp * Geometry::kStrips + strip) * kColumns + column) * 32);
        float(&sum)[4] = sums.values[strip][column];
        sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
      }
    }
  }
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
__global__ void __launch_bounds__(Geometry::kThreads)
    DecodeMatmulKernel(const __grid_constant__ DecodeMatmulArgs args) {
  using Layout = DecodeLayout<Geometry, kRows, kF8>;
  constexpr int kStages = Layout::kStages;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t barriers[2 * kStages];
  __shared__ int arrived;
  const uint32_t ring = SharedAddress(shared);
  const uint32_t full = SharedAddress(barriers), empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const UnitRange units = UnitsOf(blockIdx.x, gridDim.x, args.num_units);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(full + 8 * stage, kBulkCopies ? 1 : 32);
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
  int stage = 0;
  uint32_t parity = 0;
  for (int unit = units.begin; unit < units.end; ++unit) {
    const int tile = unit / args.num_chunks, chunk = unit % args.num_chunks;
    const int k = min(Layout::kChunkK, args.in_features - chunk * Layout::kChunkK);
    WaitBarrier(full + 8 * stage, parity);
    const uint32_t weights = ring + stage * Layout::kStageBytes;
    MultiplyChunk<Geometry, kRows, kF8>(sums, weights, weights + Layout::kWeightBytes, k);
    __syncwarp();
    if (lane == 0) ArriveBarrier(empty + 8 * stage);
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    if (chunk + 1 < args.num_chunks && unit + 1 < units.end) continue;
    SumSlices<Geometry, kRows>(reinterpret_cast<float4*>(shared + kStages * Layout::kStageBytes), sums);
    if (SumWithOtherBlocks<Geometry, kRows>(args, units, tile, &arrived, sums) && warp < Geometry::kWarpsAcross) {
      WriteTile<Geometry, kRows>(args, tile, sums);
    }
    sums = {};
  }
}

}  // namespace winnow::cuda
