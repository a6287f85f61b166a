#pragma once
#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/top_k_cut.cuh"

// The most important columns of a list whose keys lie in the shared memory of a cluster's blocks, each block's own
// columns behind those of the blocks before it. Blocks tell each other how many columns they have in which bin, and the
// few ranks near the cut; keys stay where they are.

namespace winnow::cuda {

inline constexpr uint32_t kClusterBins = 1024;
inline constexpr int kClusterBinBits = 10;
inline constexpr uint32_t kClusterContested = 128;  // ranks of all blocks that are compared with one another
inline constexpr uint32_t kMaxClusterBlocks = 8;

// Bins of importances: 32 to an octave, from 2^-29 up to the 8 that a group may sum to; the lowest and the highest also
// hold what is beyond.
struct OctaveBins {
  static constexpr uint32_t kLow = 0x80000000u | (127 - 29) << 23;
  static constexpr int kShift = 23 - 5;
  static __device__ __forceinline__ uint32_t Of(uint32_t key) {
    return min((max(key, kLow) - kLow) >> kShift, kClusterBins - 1);
  }
  static __device__ __forceinline__ DigitRange Keys(uint32_t bin) {
    const uint32_t low = kLow + (bin << kShift);
    return {.low = bin == 0 ? 0 : low, .high = bin == kClusterBins - 1 ? ~0u : low + ((1u << kShift) - 1)};
  }
};

struct ClusterCutControl {
  struct Share {
    uint32_t contested, above;
  };
  alignas(8) uint64_t arrived;  // barrier of the bins that others add, one phase to a round
  uint64_t cut;
  Share shares[kMaxClusterBlocks];  // of each block: how many columns near the cut, and surely chosen
  uint32_t bin, rows_above, rows_in;
  uint32_t own_contested, own_above;
  uint32_t lower_contested;  // that are chosen, of the blocks before
  uint32_t warp_sums[kMaxSelectWarps];
};

// Shared memory of a block.
struct ClusterCutMemory {
  ClusterCutControl* control;
  uint32_t* keys;       // of the block's columns
  uint32_t* own_bins;   // [kClusterBins]
  uint32_t* all_bins;   // [kClusterBins] of the other blocks
  uint64_t* contested;  // [blocks, kClusterContested] ranks

  // All threads, before a ClusterSync behind which Cut is called.
  __device__ __forceinline__ void Clear() const {
    for (uint32_t bin = threadIdx.x; bin < kClusterBins; bin += blockDim.x) own_bins[bin] = all_bins[bin] = 0;
    if (threadIdx.x == 0) control->own_contested = control->own_above = control->lower_contested = 0;
    FenceSharedForCluster();
  }
};

// A block's selectable columns: keys[begin, end), which are columns [first + begin, first + end).
struct OwnColumns {
  uint32_t first, begin, end;
};

struct ClusterCut {
  uint64_t least;   // rank that is chosen
  uint32_t before;  // chosen columns of the blocks before this one
};

// The bin of all blocks, from the top, in which `rows` columns are reached. All threads; ends with a barrier.
__device__ __forceinline__ void FindClusterBin(const ClusterCutMemory& memory, uint32_t rows) {
  ClusterCutControl& control = *memory.control;
  uint32_t pair = kClusterBins / 2 - 1 - threadIdx.x, low = 0, high = 0;
  if (threadIdx.x < kClusterBins / 2) {
    const uint2 own = reinterpret_cast<const uint2*>(memory.own_bins)[pair];
    const uint2 others = reinterpret_cast<const uint2*>(memory.all_bins)[pair];
    low = own.x + others.x, high = own.y + others.y;
  }
  const uint32_t above = SumBefore(low + high, control.warp_sums).before;
  if (above < rows && above + low + high >= rows) {
    const bool in_high = above + high >= rows;
    control.bin = 2 * pair + in_high;
    control.rows_above = in_high ? above : above + high;
    control.rows_in = in_high ? high : low;
  }
  __syncthreads();
}

// The cut behind the best `rows` columns of all blocks, which have more. All threads of all blocks; own columns are
// counted in memory.own_bins by OctaveBins, without a barrier since. Ends with one; no block reads or writes another's
// memory any more.
__device__ __forceinline__ ClusterCut CutOfCluster(const ClusterCutMemory& memory, OwnColumns own, uint32_t rows,
                                                   uint32_t rank, uint32_t blocks) {
  ClusterCutControl& control = *memory.control;
  constexpr uint32_t kBytes = kClusterBins * sizeof(uint32_t);
  DigitRange range{.low = 0, .high = 0};
  int shift = 0;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    FenceSharedForCluster();
    __syncthreads();
    if (blocks > 1) {
      if (threadIdx.x == 0) ExpectInCluster(&control.arrived, (blocks - 1) * kBytes);
      if (threadIdx.x > 0 && threadIdx.x < blocks) {
        const uint32_t peer = (rank + threadIdx.x) % blocks;
        AddInCluster(OfRank(memory.all_bins, peer), memory.own_bins, kBytes, OfRank(&control.arrived, peer));
      }
      WaitInCluster(&control.arrived, round % 2);
    }
    FindClusterBin(memory, rows);
    const uint32_t bin = control.bin, in_bin = control.rows_in;
    rows -= control.rows_above;
    if (round == 0) {
      range = OctaveBins::Keys(bin);
    } else {
      range.Narrow(bin, shift);
    }
    if (in_bin <= kClusterContested) break;
    ClusterSync();  // the bins have been sent, and read
    memory.Clear();
    ClusterSync();
    shift = max(0, 32 - __clz(static_cast<int>(range.high - range.low)) - kClusterBinBits);
    for (uint32_t i = own.begin + threadIdx.x; i < own.end; i += blockDim.x) {
      uint32_t place;
      if (range.Holds(memory.keys[i], own.first + i, &place)) atomicAdd(&memory.own_bins[place >> shift], 1u);
    }
  }

  uint64_t* const to = memory.contested + rank * kClusterContested;
  uint32_t above = 0;
#pragma unroll 4
  for (uint32_t i = own.begin + threadIdx.x; i < own.end; i += blockDim.x) {
    const uint32_t key = memory.keys[i];
    const uint64_t column_rank = RankOf(key, own.first + i);
    uint32_t place;
    if (range.Holds(key, own.first + i, &place)) {
      const uint32_t slot = atomicAdd(&control.own_contested, 1u);
      for (uint32_t block = 0; block < blocks; ++block) *OfRank(to + slot, block) = column_rank;
    } else {
      above += column_rank > range.LeastRank();
    }
  }
  above = __reduce_add_sync(~0u, above);
  if (threadIdx.x % 32 == 0) atomicAdd(&control.own_above, above);
  __syncthreads();
  if (threadIdx.x < blocks) {
    *OfRank(&control.shares[rank], threadIdx.x) = {control.own_contested, control.own_above};
  }
  ClusterSync();

  uint32_t contested = 0, before = 0, block = 0, slot = ~0u;  // of this thread
  for (uint32_t other = 0; other < blocks; ++other) {
    const ClusterCutControl::Share share = control.shares[other];
    if (other < rank) before += share.above;
    if (threadIdx.x >= contested && threadIdx.x - contested < share.contested) {
      block = other;
      slot = threadIdx.x - contested;
    }
    contested += share.contested;
  }
  if (slot != ~0u) {
    const uint64_t own_rank = memory.contested[block * kClusterContested + slot];
    uint32_t ranks_above = 0;
    for (uint32_t other = 0; other < blocks; ++other) {
      const uint64_t* ranks = memory.contested + other * kClusterContested;
#pragma unroll 4
      for (uint32_t i = 0; i < control.shares[other].contested; ++i) ranks_above += ranks[i] > own_rank;
    }
    if (ranks_above < rows && block < rank) atomicAdd(&control.lower_contested, 1u);
    if (ranks_above + 1 == rows) control.cut = own_rank;
  }
  __syncthreads();
  return {control.cut, before + control.lower_contested};
}

}  // namespace winnow::cuda
