#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_lists.cuh"

namespace winnow::cuda {

inline constexpr int kDecodeWarps = 4;  // that work on rows; as many more bring them
inline constexpr int kDecodeThreads = 2 * kDecodeWarps * 32;
inline constexpr int kTileRows = 16;
inline constexpr int kMaxGroup = 8;          // query heads of a kv head, the N side of products
inline constexpr int kMaxClusterUnits = 16;  // thread blocks of a cluster, where a list has one

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
  // What a block of a cluster is sent to merge: its share of the list's elements, of each unit, and all (m, l).
  static constexpr int kFragments = kValueTiles * 32;
  struct Inbox {
    float4 o[kFragments];                        // [unit][share]
    float4 ml[kMaxClusterUnits][kMaxGroup / 2];  // of two heads each
  };
  // Shared memory begins so; behind it lie the stages, then the inbox where there are clusters.
  static constexpr int kMaxStages = 6;
  struct alignas(128) Shared {
    Exchange exchange[2];
    uint64_t full[kMaxStages];   // the chunk has come
    uint64_t empty[kMaxStages];  // its room is free again
    uint32_t arrived;

    __device__ unsigned char* stage(uint32_t index) {
      return reinterpret_cast<unsigned char*>(this + 1) + index * kStageBytes;
    }
    __device__ Inbox& inbox(uint32_t num_stages) { return *reinterpret_cast<Inbox*>(stage(num_stages)); }
  };
  // Thread blocks of a multiprocessor, which has 227 KiB for them, each taking 1 KiB more than it asks for.
  static constexpr int kBlocks = kHeadDim <= 128 ? 2 : 1;
  static constexpr int Stages(bool clustered) {
    const int room = 227 * 1024 / kBlocks - 1024 - sizeof(Shared) - (clustered ? sizeof(Inbox) : 0);
    return room / kStageBytes < kMaxStages ? room / kStageBytes : kMaxStages;
  }
  static constexpr int SharedBytes(bool clustered) {
    return sizeof(Shared) + Stages(clustered) * kStageBytes + (clustered ? sizeof(Inbox) : 0);
  }
  static_assert(Stages(true) >= 2);

  // A partial result in scratch: the fragments of one head_dim, then (m, l) of each head.
  static constexpr size_t kPartialFloats = kFragments * 4 + 2 * kMaxGroup;
};

}  // namespace winnow::cuda
