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
inline constexpr uint32_t kClusterContested = 256;  // ranks of all blocks that are compared with one another
inline constexpr uint32_t kMaxClusterBlocks = 8;

// Bins of importances: 32 to an octave, from 2^-29 up to the 8 that a group may sum to; the lowest and the highest also
// hold what is beyond.
struct OctaveBins {
  static constexpr uint32_t kLow = 0x80000000u | (127 - 29) << 23;
  static constexpr int kShift = 23 - 5;
  __device__ __forceinline__ uint32_t Of(uint32_t key) const {
    return min((max(key, kLow) - kLow) >> kShift, kClusterBins - 1);
  }
  // The keys of a bin.
  __device__ __forceinline__ DigitRange Keys(uint32_t bin) const {
    const uint32_t low = kLow + (bin << kShift);
    return {.low = bin == 0 ? 0 : low, .high = bin == kClusterBins - 1 ? ~0u : low + ((1u << kShift) - 1)};
  }
};

// How many columns are chosen: the fewest that are `rows`, or hold `mass`.
struct NoMass {
  static constexpr bool kCounts = false;
  static constexpr uint64_t mass = 0;
  __device__ __forceinline__ uint64_t Of(uint32_t, uint32_t) const { return 0; }
};
template <ImportanceKind kKind>
struct ColumnMass {
  static constexpr bool kCounts = true;
  uint64_t mass;
  const Importance<kKind>& importance;
  __device__ __forceinline__ uint64_t Of(uint32_t key, uint32_t column) const {
    return MassOfColumn(importance, key, column);
  }
};
// Masses are counted by bin in three words of 15 bits each, of up to 2^17 columns.
inline constexpr int kMassWords = 3, kMassWordBits = 15;
inline constexpr uint32_t kMostMassColumns = 1u << 17;
inline constexpr uint32_t kHeldWords = 4;  // behind the bins: the mass of columns that are kept anyway, likewise

struct ClusterCutControl {
  struct Share {
    uint32_t contested, above;
  };
  alignas(8) uint64_t arrived;  // barrier of the bins that others add, one phase to a round
  uint64_t cut, mass_above;
  Share shares[kMaxClusterBlocks];  // of each block: how many columns near the cut, and surely chosen
  uint32_t bin, rows_above, rows_in;
  uint32_t own_contested, own_above;
  uint32_t lower_contested;  // that are chosen, of the blocks before
  uint32_t warp_sums[kMaxSelectWarps];
  uint64_t warp_masses[kMaxSelectWarps];
};

// Shared memory of a block.
struct ClusterCutMemory {
  ClusterCutControl* control;
  uint32_t* keys;       // of the block's columns
  uint32_t* own_bins;   // [kClusterBins] counts; by mass, [kMassWords, kClusterBins] masses and [kHeldWords] behind
  uint32_t* all_bins;   // the same of the other blocks
  uint64_t* contested;  // [blocks, kClusterContested] ranks
  uint32_t words;       // of bins

  static constexpr uint32_t Words(bool by_mass) {
    return by_mass ? (1 + kMassWords) * kClusterBins + kHeldWords : kClusterBins;
  }
  static constexpr size_t Bytes(uint32_t blocks, uint32_t block_columns, bool by_mass) {
    return blocks * kClusterContested * sizeof(uint64_t) + (2 * Words(by_mass) + block_columns) * sizeof(uint32_t);
  }
  // `base` is aligned to 16 bytes.
  __device__ __forceinline__ void Place(uint8_t* base, uint32_t blocks, bool by_mass) {
    words = Words(by_mass);
    contested = reinterpret_cast<uint64_t*>(base);
    own_bins = reinterpret_cast<uint32_t*>(contested + blocks * kClusterContested);
    all_bins = own_bins + words;
    keys = all_bins + words;
  }
  // All threads, before a ClusterSync behind which columns are counted and cut.
  __device__ __forceinline__ void Clear() const {
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) own_bins[i] = all_bins[i] = 0;
    if (threadIdx.x == 0) control->own_contested = control->own_above = control->lower_contested = 0;
    FenceSharedForCluster();
  }
  // Most columns may lie in the lowest bin, all of one address: what is in no other does, without being counted.
  template <typename Bins, typename Mass>
  __device__ __forceinline__ void Count(const Bins& bins, uint32_t key, uint32_t column, const Mass& mass) const {
    const uint32_t bin = bins.Of(key);
    if (bin != 0) Add(bin, key, column, mass);
  }
  template <typename Mass>
  __device__ __forceinline__ void Add(uint32_t bin, uint32_t key, uint32_t column, const Mass& mass) const {
    atomicAdd(&own_bins[bin], 1u);
    if constexpr (Mass::kCounts) {
      AddMass(own_bins + kClusterBins + bin, kClusterBins, mass.Of(key, column));
    }
  }
  // Mass that is held without being chosen. Whole warps.
  __device__ __forceinline__ void AddHeld(uint64_t mass) const {
    if (__ballot_sync(~0u, mass != 0) == 0) return;
    for (int step = 16; step > 0; step /= 2) mass += __shfl_xor_sync(~0u, mass, step);
    if (threadIdx.x % 32 == 0) AddMass(own_bins + (1 + kMassWords) * kClusterBins, 1, mass);
  }
  __device__ __forceinline__ uint64_t Held() const {
    uint64_t held = 0;
#pragma unroll
    for (int i = 0; i < kMassWords; ++i) {
      const uint32_t at = (1 + kMassWords) * kClusterBins + i;
      held += uint64_t{own_bins[at] + all_bins[at]} << i * kMassWordBits;
    }
    return held;
  }

 private:
  static __device__ __forceinline__ void AddMass(uint32_t* words, uint32_t stride, uint64_t mass) {
#pragma unroll
    for (int i = 0; i < kMassWords; ++i) {
      const uint64_t left = mass >> i * kMassWordBits;
      const auto part = static_cast<uint32_t>(i + 1 < kMassWords ? left & ((1u << kMassWordBits) - 1) : left);
      if (part != 0) atomicAdd(&words[i * stride], part);
    }
  }
};

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

}  // namespace winnow::cuda
