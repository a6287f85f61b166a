#pragma once
#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/select/cluster_bins.cuh"

// The most important columns of a list whose keys lie in the shared memory of a cluster's blocks, each block's own
// columns behind those of the blocks before it. Blocks tell each other how many columns they have in which bin, and the
// few ranks near the cut; keys stay where they are.

namespace winnow::device {

// A block's selectable columns: keys[begin, end), which are columns [first + begin, first + end).
struct OwnColumns {
  uint32_t first, begin, end;
};

inline constexpr uint64_t kNoRank = ~0ull;
struct ClusterCut {
  uint64_t least;   // rank that is chosen; 0 where all are, kNoRank where none is
  uint32_t before;  // chosen columns of the blocks before this one; undefined where all are
};

// The bin of all blocks, from the top, in which `rows` columns or the mass are reached; ~0 where neither is, beside how
// many lie above the bins then. All threads, behind a barrier; ends with one.
template <typename Mass>
__device__ __forceinline__ void FindClusterBin(const ClusterCutMemory& memory, uint32_t rows, uint64_t mass) {
  ClusterCutControl& control = *memory.control;
  if (threadIdx.x == 0) control.bin = ~0u;
  const uint32_t pair = kClusterBins / 2 - 1 - threadIdx.x;
  uint32_t counts[2] = {};  // of the higher bin, of the lower one
  uint64_t masses[2] = {};
  if (threadIdx.x < kClusterBins / 2) {
    const auto word = [&](uint32_t i) {
      const uint2 own = reinterpret_cast<const uint2*>(memory.own_bins + i * kClusterBins)[pair];
      const uint2 others = reinterpret_cast<const uint2*>(memory.all_bins + i * kClusterBins)[pair];
      return uint2{own.y + others.y, own.x + others.x};
    };
    const uint2 count = word(0);
    counts[0] = count.x, counts[1] = count.y;
    if constexpr (Mass::kCounts) {
#pragma unroll
      for (int i = 0; i < kMassWords; ++i) {
        const uint2 part = word(1 + i);
        masses[0] += uint64_t{part.x} << i * kMassWordBits;
        masses[1] += uint64_t{part.y} << i * kMassWordBits;
      }
    }
  }
  uint32_t above = SumBefore(counts[0] + counts[1], control.warp_sums).before;
  uint64_t mass_above = 0;
  if constexpr (Mass::kCounts) mass_above = SumBefore(masses[0] + masses[1], control.warp_masses);
  const auto is_reached = [&] { return above >= rows || (Mass::kCounts && mass_above >= mass); };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t rows_above = above;
    const uint64_t before = mass_above;
    const bool was_reached = is_reached();
    above += counts[i];
    mass_above += masses[i];
    if (!was_reached && is_reached()) {
      control.bin = 2 * pair + 1 - i;
      control.rows_above = rows_above;
      control.rows_in = counts[i];
      control.mass_above = before;
    }
  }
  if (pair == 0 && !is_reached()) {
    control.rows_above = above;
    control.mass_above = mass_above;
  }
  __syncthreads();
}

// The cut behind the best of the `count` columns of all blocks: the fewest that are `rows`, or hold mass.mass. All
// threads of all blocks; own columns are counted in memory.own_bins by `bins`, without a barrier since. Ends with one;
// no block reads or writes another's memory any more.
template <typename Bins, typename Mass>
__device__ __forceinline__ ClusterCut CutOfCluster(const ClusterCutMemory& memory, OwnColumns own, uint32_t count,
                                                   uint32_t rows, const Bins& bins, const Mass& mass, uint32_t rank,
                                                   uint32_t blocks) {
  ClusterCutControl& control = *memory.control;
  const uint32_t bytes = memory.words * static_cast<uint32_t>(sizeof(uint32_t));
  DigitRange range{.low = 0, .high = ~0u};
  uint32_t bin = 0, rows_left = rows;
  uint64_t mass_left = mass.mass;
  bool by_digits = false;  // otherwise by `bins`
  int shift = 0;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    FenceSharedForCluster();
    __syncthreads();
    if (blocks > 1) {
      if (threadIdx.x == 0) ExpectInCluster(&control.arrived, (blocks - 1) * bytes);
      if (threadIdx.x > 0 && threadIdx.x < blocks) {
        const uint32_t peer = (rank + threadIdx.x) % blocks;
        AddInCluster(OfRank(memory.all_bins, peer), memory.own_bins, bytes, OfRank(&control.arrived, peer));
      }
      WaitInCluster(&control.arrived, round % 2);
    }
    if constexpr (Mass::kCounts) {
      if (round == 0) {
        const uint64_t held = memory.Held();
        if (held >= mass_left) {
          ClusterSync();  // the bins have been sent
          return {kNoRank, 0};
        }
        mass_left -= held;
      }
    }
    FindClusterBin<Mass>(memory, rows_left, mass_left);
    bin = control.bin;
    uint32_t in_bin = control.rows_in;
    if (bin == ~0u && round == 0 && count > control.rows_above) {
      bin = 0;
      in_bin = count - control.rows_above;
    }
    if (bin == ~0u) {
      ClusterSync();  // the bins have been sent
      return {0, 0};
    }
    const bool is_few = in_bin <= kClusterContested;
    if (by_digits) {
      range.Narrow(bin, shift);
    } else if constexpr (requires { bins.Keys(bin); }) {
      range = bins.Keys(bin);
      by_digits = true;
    }
    if (by_digits || is_few) {
      rows_left -= control.rows_above;
      mass_left -= control.mass_above;
    } else {
      by_digits = true;  // all over again
    }
    if (is_few) break;
    ClusterSync();  // the bins have been sent, and read
    memory.Clear();
    ClusterSync();
    shift = max(0, 32 - __clz(static_cast<int>(range.high - range.low)) - kClusterBinBits);
    for (uint32_t i = own.begin + threadIdx.x; i < own.end; i += blockDim.x) {
      uint32_t place;
      const uint32_t key = memory.keys[i];
      if (range.Holds(key, own.first + i, &place)) memory.Add(place >> shift, key, own.first + i, mass);
    }
  }

  uint64_t* const to = memory.contested + rank * kClusterContested;
  uint32_t above = 0;
#pragma unroll 4
  for (uint32_t i = own.begin + threadIdx.x; i < own.end; i += blockDim.x) {
    const uint32_t key = memory.keys[i];
    const uint64_t column_rank = RankOf(key, own.first + i);
    uint32_t place;
    if (by_digits ? range.Holds(key, own.first + i, &place) : bins.Of(key) == bin) {
      const uint32_t slot = atomicAdd(&control.own_contested, 1u);
      for (uint32_t block = 0; block < blocks; ++block) *OfRank(to + slot, block) = column_rank;
    } else {
      above += by_digits ? column_rank > range.LeastRank() : bins.Of(key) > bin;
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
    uint32_t rows_above = 0;
    uint64_t mass_above = 0;
    for (uint32_t other = 0; other < blocks; ++other) {
      const uint64_t* ranks = memory.contested + other * kClusterContested;
#pragma unroll 4
      for (uint32_t i = 0; i < control.shares[other].contested; ++i) {
        const uint64_t other_rank = ranks[i];
        if (other_rank <= own_rank) continue;
        ++rows_above;
        if constexpr (Mass::kCounts) mass_above += mass.Of(KeyOf(other_rank), ColumnOf(other_rank));
      }
    }
    const bool is_chosen = rows_above < rows_left && !(Mass::kCounts && mass_above >= mass_left);
    if constexpr (Mass::kCounts) mass_above += mass.Of(KeyOf(own_rank), ColumnOf(own_rank));
    const bool is_last = rows_above + 1 >= rows_left || (Mass::kCounts && mass_above >= mass_left);
    if (is_chosen && block < rank) atomicAdd(&control.lower_contested, 1u);
    if (is_chosen && is_last) control.cut = own_rank;
  }
  __syncthreads();
  return {control.cut, before + control.lower_contested};
}

// Which of a block's columns, of which keys[0] is column `first`, have a rank from `least` on; all with 0.
struct ChosenColumns {
  const uint32_t* keys;
  uint32_t first;
  uint64_t least;
  __device__ __forceinline__ bool operator()(uint32_t column) const {
    return least == 0 || RankOf(keys[column], first + column) >= least;
  }
};

// Calls emit(column of the block, place) for the block's chosen columns, in order, places from `before` on. A warp
// takes neighbouring columns. Returns the place behind them. All threads of a block, behind a barrier.
template <typename IsChosen, typename Emit>
__device__ __forceinline__ uint32_t EmitChosen(OwnColumns own, uint32_t before, uint32_t* warp_sums, IsChosen is_chosen,
                                               Emit emit) {
  const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const uint32_t words = (own.end + 31) / 32, warp_words = (words + warps - 1) / warps;
  const uint32_t first = min(warp * warp_words, words), last = min(first + warp_words, words);
  const auto bits_of = [&](uint32_t word) {
    const uint32_t column = word * 32 + lane;
    // Keys behind the end are looked at and not used.
    return __ballot_sync(~0u, is_chosen(column) & (column >= own.begin) & (column < own.end));
  };
  uint32_t count = 0;
#pragma unroll 4
  for (uint32_t word = first; word < last; ++word) count += __popc(bits_of(word));
  if (lane == 0) warp_sums[warp] = count;
  __syncthreads();
  const uint32_t of_warp = lane < warps ? warp_sums[lane] : 0;
  uint32_t place = before + __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
#pragma unroll 4
  for (uint32_t word = first; word < last; ++word) {
    const uint32_t bits = bits_of(word);
    if ((bits >> lane & 1) != 0) emit(word * 32 + lane, place + __popc(bits & ((1u << lane) - 1)));
    place += __popc(bits);
  }
  return before + __reduce_add_sync(~0u, of_warp);
}

}  // namespace winnow::device
