#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_lists.cuh"
#include "kernels/cuda/attention_units.cuh"

namespace winnow::cuda {

inline constexpr int kTeamWarps = 4;    // that work on a chunk
inline constexpr int kStreamWarps = 4;  // that bring rows
inline constexpr int kTileRows = 16;
inline constexpr int kMaxGroup = 8;       // query heads of a kv head, the N side of products
inline constexpr int kClusterUnits = 16;  // thread blocks of a cluster, where a list has one

// What a thread block of decode attention has in shared memory, and in which portions it works: batches of one chunk
// for each of its teams. Two teams keep up with the memory of a multiprocessor by themselves; with one, two blocks fit.
template <int kHeadDim, Dtype kDtype, int kTeams>
struct DecodeShape {
  static constexpr bool kScaled = kDtype != Dtype::kBf16;
  static constexpr bool kClustered = kTeams == 1 && kHeadDim <= 128;
  static constexpr int kWarps = kTeams * kTeamWarps;
  static constexpr int kThreads = (kWarps + kStreamWarps) * 32;
  static constexpr int kHalfBytes = kDtype == Dtype::kI4 ? kHeadDim / 2 : kHeadDim * (kDtype == Dtype::kBf16 ? 2 : 1);
  static constexpr int kRowBytes = 2 * kHalfBytes;
  static constexpr int kRowPieces = kRowBytes / 16;
  static constexpr int kRowStride = kRowBytes + 16;  // an odd number of pieces: 8 rows' pieces lie in different banks
  static constexpr int kChunkRows = ChunkRows(kDtype);
  static constexpr int kWarpRows = kChunkRows / kTeamWarps;
  static constexpr int kWarpRowTiles = kWarpRows / kTileRows;
  static constexpr int kRowsBytes = kTeams * kChunkRows * kRowStride;
  static constexpr int kScaleBytes = kScaled ? kTeams * kChunkRows * 8 : 0;
  static constexpr int kStageBytes = kRowsBytes + kScaleBytes;
  static constexpr int kValueTiles = kHeadDim / 16;
  static constexpr int kWarpTiles = (kValueTiles + kWarps - 1) / kWarps;
  static_assert(kRowPieces % 2 == 0);

  // What the warps tell each other of a batch; two of them, in turn.
  struct Exchange {
    uint2 weights[kWarps][kWarpRowTiles][32];  // as the product with V takes them
    float m[kWarps][kMaxGroup];
    float l[kWarps][kMaxGroup];
    float value_scale[kWarps];
  };
  // What a block of a cluster is sent to merge: its share of the list's elements, of each unit, and all (m, l).
  static constexpr int kFragments = kValueTiles * 32;
  struct Inbox {
    float4 o[kFragments];                     // [unit][share]
    float4 ml[kClusterUnits][kMaxGroup / 2];  // of two heads each
  };
  // Shared memory begins so; behind it lie the stages, then the inbox where there are clusters.
  static constexpr int kMaxStages = 6;
  struct alignas(128) Shared {
    Exchange exchange[2];
    uint64_t full[kMaxStages];   // the batch has come
    uint64_t empty[kMaxStages];  // its room is free again
    UnitBoard units;
    uint32_t arrived;

    __device__ unsigned char* stage(uint32_t index) {
      return reinterpret_cast<unsigned char*>(this + 1) + index * kStageBytes;
    }
    __device__ Inbox& inbox(uint32_t num_stages) { return *reinterpret_cast<Inbox*>(stage(num_stages)); }
  };
  // Thread blocks of a multiprocessor. Each takes 1 KiB of shared memory more than it asks for.
  static constexpr int kBlocks = kClustered ? 2 : 1;
  static constexpr int kFixedBytes = sizeof(Shared) + (kClustered ? sizeof(Inbox) : 0);
  // As many as fit where one block may have so much shared memory: 227 KiB on compute capability 9.0, 163 KiB on 8.0.
  static constexpr int Stages(int most_bytes) {
    const int room = (most_bytes + 1024) / kBlocks - 1024 - kFixedBytes;
    return room / kStageBytes < kMaxStages ? room / kStageBytes : kMaxStages;
  }

  // A partial result in scratch: the fragments of one head_dim, then (m, l) of each head.
  static constexpr size_t kPartialFloats = kFragments * 4 + 2 * kMaxGroup;
};

}  // namespace winnow::cuda
