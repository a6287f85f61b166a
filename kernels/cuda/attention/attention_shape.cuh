#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/attention_lists.cuh"
#include "kernels/cuda/attention/attention_units.cuh"

namespace winnow::device {

inline constexpr int kWorkWarps = 4;    // that work on rows
inline constexpr int kStreamWarps = 4;  // that bring them
inline constexpr int kDecodeThreads = (kWorkWarps + kStreamWarps) * 32;
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
  static constexpr int kChunkRows = ChunkRows(kDtype);
  // Rows of a chunk lie in columns of 128 bytes, in each of which 16-byte pieces are permuted within 8 rows: the copy
  // engine's 128-byte swizzle, where the same pieces of 8 rows lie in different banks.
  static constexpr int kColumnBytes = kChunkRows * 128;
  static constexpr int kColumns = (kRowBytes + 127) / 128;
  __device__ static uint32_t PieceAt(uint32_t row, uint32_t piece) {
    return piece / 8 * kColumnBytes + row * 128 + (piece ^ row) % 8 * 16;
  }
  // Whether rows that follow each other may come in boxes of whole columns.
  static constexpr bool kBoxes = kRowBytes % 128 == 0;
  static constexpr int kWarpRows = kChunkRows / kWorkWarps;
  static constexpr int kWarpRowTiles = kWarpRows / kTileRows;
  static constexpr int kStreamRows = kChunkRows / kStreamWarps;
  static constexpr int kRowsBytes = kColumns * kColumnBytes;
  static constexpr int kScaleBytes = kScaled ? kChunkRows * 8 : 0;
  static constexpr int kStageBytes = kRowsBytes + kScaleBytes;
  static_assert(kStageBytes % 1024 == 0);  // where the pattern repeats
  static constexpr int kValueTiles = kHeadDim / 16;
  static constexpr int kWarpTiles = (kValueTiles + kWorkWarps - 1) / kWorkWarps;
  static_assert(kRowPieces % 2 == 0);

  // What the warps tell each other of a chunk; two of them, in turn.
  struct Exchange {
    alignas(16) uint2 weights[kWorkWarps][kWarpRowTiles][32];  // as the product with V takes them
    float m[kWorkWarps][kMaxGroup];
    float l[kWorkWarps][kMaxGroup];
    float value_scale[kWorkWarps];
  };
  // What a block of a cluster is sent to merge: its share of the list's elements, of each unit, and all (m, l).
  static constexpr int kFragments = kValueTiles * 32;
  struct Inbox {
    float4 o[kFragments];                     // [unit][share]
    float4 ml[kClusterUnits][kMaxGroup / 2];  // of two heads each
  };
  // Shared memory begins so; behind it lie the stages, then the inbox where there are clusters.
  static constexpr int kMaxStages = 6;
  struct alignas(1024) Shared {
    Exchange exchange[2];
    uint64_t full[kMaxStages];   // the chunk has come
    uint64_t empty[kMaxStages];  // its room is free again
    uint64_t met;                // cache ranks have sent what is attended to
    UnitBoard units;
    uint32_t arrived;

    __device__ unsigned char* stage(uint32_t index) {
      return reinterpret_cast<unsigned char*>(this + 1) + index * kStageBytes;
    }
    __device__ Inbox& inbox(uint32_t num_stages) { return *reinterpret_cast<Inbox*>(stage(num_stages)); }
  };
  // Thread blocks of a multiprocessor. Each takes 1 KiB of shared memory more than it asks for.
  static constexpr int kBlocks = kHeadDim <= 128 ? 2 : 1;
  static constexpr int FixedBytes(bool clustered) { return sizeof(Shared) + (clustered ? sizeof(Inbox) : 0); }
  // As many as fit where one block may have so much shared memory: 227 KiB on compute capability 9.0, 163 KiB on 8.0.
  static constexpr int Stages(bool clustered, int most_bytes) {
    const int room = (most_bytes + 1024) / kBlocks - 1024 - FixedBytes(clustered);
    return room / kStageBytes < kMaxStages ? room / kStageBytes : kMaxStages;
  }
  static_assert(Stages(true, 163 * 1024) >= 2);

  // A partial result in scratch: the fragments of one head_dim, then (m, l) of each head.
  static constexpr size_t kPartialFloats = kFragments * 4 + 2 * kMaxGroup;
};

}  // namespace winnow::device
