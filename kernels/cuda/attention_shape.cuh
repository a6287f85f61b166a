#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_lists.cuh"

namespace winnow::cuda {

inline constexpr int kDecodeWarps = 4;  // that work on rows; one more brings them
inline constexpr int kDecodeThreads = (kDecodeWarps + 1) * 32;
inline constexpr int kTileRows = 16;
inline constexpr int kMaxGroup = 8;       // query heads of a kv head, the N side of products
inline constexpr int kClusterUnits = 16;  // thread blocks of a cluster, where a list has one

// What a thread block of decode attention has in shared memory, and in which portions it works.
template <int kHeadDim, Dtype kDtype>
struct DecodeShape {
  static constexpr bool kScaled = kDtype != Dtype::kBf16;
  static constexpr int kHalfBytes = kDtype == Dtype::kI4 ? kHeadDim / 2 : kHeadDim * (kDtype == Dtype::kBf16 ? 2 : 1);
  static constexpr int kRowBytes = 2 * kHalfBytes;
  static constexpr int kRowPieces = kRowBytes / 16;
  static constexpr int kRowStride = kRowBytes + 16;  // an odd number of pieces: 8 rows' pieces lie in different banks
  static constexpr int kChunkRows = ChunkRows(kDtype);
  static constexpr int kWarpRows = kChunkRows / kDecodeWarps;
  static constexpr int kWarpRowTiles = kWarpRows / kTileRows;
  static constexpr int kRowsBytes = kChunkRows * kRowStride;
  static constexpr int kScaleBytes = kScaled ? kChunkRows * 8 : 0;
  static constexpr int kStageBytes = kRowsBytes + kScaleBytes;
  static constexpr int kStages = kStageBytes * 4 <= 72 * 1024 ? 4 : 3;
  static constexpr int kValueTiles = kHeadDim / 16;
  static constexpr int kWarpTiles = (kValueTiles + kDecodeWarps - 1) / kDecodeWarps;
  static_assert(kRowPieces % 2 == 0);

  // What the warps tell each other of a chunk; two of them, in turn.
  struct Exchange {
    uint2 weights[kDecodeWarps][kWarpRowTiles][32];  // as the product with V takes them
    float m[kDecodeWarps][kMaxGroup];
    float l[kDecodeWarps][kMaxGroup];
    float value_scale[kDecodeWarps];
  };
  // The share of a list's elements that a block of a cluster merges, and their sums and maxima, of each unit.
  static constexpr int kShareFragments = kValueTiles * 32 / kClusterUnits;
  struct Inbox {
    float4 o[kClusterUnits][kShareFragments];
    float4 ml[kClusterUnits][kMaxGroup / 2];  // m and l of two heads
  };
  struct Shared {
    alignas(128) unsigned char stages[kStages][kStageBytes];
    Exchange exchange[2];
    Inbox inbox;
    uint64_t full[kStages];   // the chunk has come
    uint64_t empty[kStages];  // its room is free again
    uint32_t arrived;
  };
  // Thread blocks of a multiprocessor, which has 227 KiB for them, each taking 1 KiB more than it asks for.
  static constexpr int kBlocks = 227 * 1024 / (sizeof(Shared) + 1024) < 3 ? 227 * 1024 / (sizeof(Shared) + 1024) : 3;

  // A partial result in scratch: the fragments of one head_dim, then (m, l) of each head.
  static constexpr size_t kPartialFloats = kValueTiles * 32 * 4 + 2 * kMaxGroup;
};

}  // namespace winnow::cuda
