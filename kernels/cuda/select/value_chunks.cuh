#pragma once
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster.cuh"

// Values of a list on their way to a warp, chunk by chunk, by the copy engine: from compute capability 9.0 on.

namespace winnow::device {

inline constexpr int kChunkFours = 4;                          // of a lane
inline constexpr uint32_t kWarpChunkFours = 32 * kChunkFours;  // of a chunk
inline constexpr uint32_t kChunkBytes = kWarpChunkFours * 16;
inline constexpr uint32_t kMostChunkStages = 2;

// The part of n values that a block takes: fours that are aligned, and up to three values at each end of the list.
struct ListParts {
  const float* aligned;  // the first four of the list
  const float* body;
  uint32_t body_first, body_fours;  // of this block; the index of its first value
  uint32_t head, tail, num_values;  // values before all fours, and behind them; none where others take them

  __device__ __forceinline__ ListParts(const float* values, uint32_t n, uint32_t rank, uint32_t blocks)
      : num_values(n) {
    const uint32_t odd = static_cast<uint32_t>(reinterpret_cast<uint64_t>(values) / sizeof(float) % 4);
    const uint32_t before = min(n, (4 - odd) % 4), fours = (n - before) / 4;
    const uint32_t begin = fours * rank / blocks, end = fours * (rank + 1) / blocks;
    body_first = before + 4 * begin;
    body_fours = end - begin;
    aligned = values + before;
    body = values + body_first;
    head = rank == 0 ? before : 0;
    tail = rank + 1 == blocks ? (n - before) % 4 : 0;
  }
  // The index of a value at an end, one to a lane; ~0 for lanes that have none.
  __device__ __forceinline__ uint32_t Edge(uint32_t lane) const {
    if (lane < head) return lane;
    if (lane >= 4 && lane - 4 < tail) return num_values - tail + lane - 4;
    return ~0u;
  }
};

// A warp's chunks of a block's fours: those of its number and every number of warps behind.
class ChunkStream {
 public:
  __device__ __forceinline__ ChunkStream(const float* body, uint32_t fours, uint8_t* rings, uint64_t* barriers,
                                         uint32_t stages)
      : body_(body),
        fours_(fours),
        ring_(rings + threadIdx.x / 32 * stages * kChunkBytes),
        barriers_(barriers),
        stages_(stages),
        lane_(threadIdx.x % 32),
        next_(fours),
        ahead_(fours) {}

  // From the first chunk on, again or for the first time.
  __device__ __forceinline__ void Begin() {
    next_ = ahead_ = threadIdx.x / 32 * kWarpChunkFours;
    for (uint32_t i = 0, stage = stage_; i < stages_; ++i) {
      Fetch(stage);
      stage = stage + 1 == stages_ ? 0 : stage + 1;
    }
  }
  __device__ __forceinline__ bool HasMore() const { return next_ < fours_; }
  // Index of the chunk's first value in the block's.
  __device__ __forceinline__ uint32_t First() const { return next_ * 4; }
  // Bits of a lane's values that are there: four i of a lane is four i * 32 + lane of the chunk.
  __device__ __forceinline__ uint32_t Meant() const {
    const uint32_t left = fours_ - next_;
    if (left >= kWarpChunkFours) return ~0u;
    const uint32_t own = left > lane_ ? (left - lane_ + 31) / 32 : 0;
    return (1u << 4 * own) - 1;
  }
  __device__ __forceinline__ const float* Await() const {
    WaitForPhase(SharedAddress(&barriers_[stage_]), parity_);
    return reinterpret_cast<const float*>(ring_ + stage_ * kChunkBytes);
  }
  // Behind the use of everything that lanes have read of the chunk: its place is written anew at once, which loads that
  // are under way do not hold up.
  __device__ __forceinline__ void Advance() {
    __syncwarp();
    Fetch(stage_);
    next_ += blockDim.x * kChunkFours;
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void Fetch(uint32_t stage) {
    if (ahead_ < fours_ && lane_ == 0) {
      const uint32_t bytes = min(fours_ - ahead_, kWarpChunkFours) * 16;
      ExpectInCluster(&barriers_[stage], bytes);
      CopyBulk(ring_ + stage * kChunkBytes, body_ + ahead_ * 4, bytes, &barriers_[stage]);
    }
    ahead_ += blockDim.x * kChunkFours;
  }

  const float* const body_;
  const uint32_t fours_;
  uint8_t* const ring_;
  uint64_t* const barriers_;
  const uint32_t stages_, lane_;
  uint32_t next_, ahead_;  // fours
  uint32_t stage_ = 0, parity_ = 0;
};

}  // namespace winnow::device
