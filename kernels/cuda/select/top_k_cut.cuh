#pragma once
#include <cstdint>

#include "kernels/cuda/select/importance.cuh"

// Importance and column together, the lower column on top, make one 64-bit rank: ranks differ, so that a cut parts the
// chosen from the rest without a word about ties.

namespace winnow::device {

// Blocks have 256, 512 or 1,024 threads, those that sum in floating point at least 512. What is summed in floating
// point is summed by the first 512, so that results do not depend on it.
inline constexpr int kMaxSelectThreads = 1024;
inline constexpr int kMaxSelectWarps = kMaxSelectThreads / 32;
inline constexpr uint32_t kSumThreads = 512;
inline constexpr uint32_t kBins = 2048;
inline constexpr int kBinBits = 11;
inline constexpr uint32_t kContested = 512;           // ranks that are compared with one another
inline constexpr float kMassUnit = 1099511627776.0f;  // 2^40: masses are summed as integers, the same in any order

// How many columns are chosen: the fewest that hold `rows` rows, or with by_mass before that `mass`.
struct CutRule {
  uint32_t rows;
  uint64_t mass;  // in 1 / kMassUnit
  bool by_mass;
  uint32_t unit_rows;            // rows of a column: 1, or a page's
  uint32_t first_row, last_row;  // with pages, what clips them

  __device__ __forceinline__ uint32_t RowsOf(uint32_t column) const {
    if (unit_rows == 1) return 1;
    return min((column + 1) * unit_rows, last_row) - max(column * unit_rows, first_row);
  }
};

// Shared memory of a block; control, and parts whose sizes the launch fixes.
struct TopKControl {
  uint32_t num_candidates;  // the leader's grows beyond the capacity where they do not fit
  uint32_t push_base;
  uint32_t low, high;
  uint32_t bin, rows_above, num_contested;
  uint64_t mass_above;
  uint64_t cut;
  uint32_t warp_rows[kMaxSelectWarps];
  uint64_t warp_mass[kMaxSelectWarps];
  uint64_t contested[kContested];
};
struct TopKMemory {
  TopKControl* control;
  uint32_t* keys;     // of the candidates, ordered as their importance is
  uint32_t* columns;  // of the candidates
  uint32_t capacity;
  uint32_t* bins;       // [kBins]
  uint64_t* mass_bins;  // [kBins], by_mass only
  uint32_t* bitmap;     // bits of the chosen columns, the leader's
};

__device__ __forceinline__ uint64_t RankOf(uint32_t key, uint32_t column) {
  return uint64_t{key} << 32 | ~column;
}
__device__ __forceinline__ uint32_t ColumnOf(uint64_t rank) {
  return ~static_cast<uint32_t>(rank);
}
__device__ __forceinline__ uint32_t KeyOf(uint64_t rank) {
  return static_cast<uint32_t>(rank >> 32);
}
__device__ __forceinline__ uint64_t MassOf(float share) {
  return __float2ull_rn(share * kMassUnit);
}

// The sum over the threads before this one, and of all; all threads call it. It holds one barrier, and another must lie
// between two calls.
struct SumsOfThreads {
  uint32_t before, all;
};
__device__ __forceinline__ SumsOfThreads SumBefore(uint32_t value, uint32_t* warp_sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  const uint32_t of_warp = lane < blockDim.x / 32 ? warp_sums[lane] : 0;
  return {__reduce_add_sync(~0u, lane < warp ? of_warp : 0) + sum - value, __reduce_add_sync(~0u, of_warp)};
}
__device__ __forceinline__ uint64_t SumBefore(uint64_t value, uint64_t* warp_sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  uint64_t base = 0;
  for (int w = 0; w < warp; ++w) base += warp_sums[w];
  return base + sum - value;
}

// Bins of 2^shift keys cover [low, high].
__device__ __forceinline__ int BinShift(uint32_t low, uint32_t high) {
  return max(0, 32 - __clz(static_cast<int>(high - low)) - kBinBits);
}

__device__ __forceinline__ void ClearBins(const TopKMemory& memory, bool by_mass) {
  for (uint32_t bin = threadIdx.x; bin < kBins; bin += blockDim.x) memory.bins[bin] = 0;
  if (!by_mass) return;
  for (uint32_t bin = threadIdx.x; bin < kBins; bin += blockDim.x) memory.mass_bins[bin] = 0;
}

// The bin, from the top, in which `rows` rows or `mass` are reached, and what lies above it; bin ~0 where neither is.
// All threads call it between barriers; the results are there after the next one.
__device__ __forceinline__ void FindBin(const TopKMemory& memory, uint32_t rows, uint64_t mass, bool by_mass) {
  const uint32_t per_thread = kBins / blockDim.x;
  TopKControl& control = *memory.control;
  const uint32_t top = kBins - 1 - threadIdx.x * per_thread;
  if (threadIdx.x == 0) control.bin = ~0u;
  uint32_t own_rows = 0;
  for (uint32_t i = 0; i < per_thread; ++i) own_rows += memory.bins[top - i];
  uint32_t rows_above = SumBefore(own_rows, control.warp_rows).before;
  uint64_t own_mass = 0, mass_above = 0;
  if (by_mass) {
    for (uint32_t i = 0; i < per_thread; ++i) own_mass += memory.mass_bins[top - i];
    mass_above = SumBefore(own_mass, control.warp_mass);
  }
  if (rows_above >= rows || (by_mass && mass_above >= mass)) return;
  if (rows_above + own_rows < rows && !(by_mass && mass_above + own_mass >= mass)) return;
  for (uint32_t i = 0; i < per_thread; ++i) {
    const uint32_t bin_rows = memory.bins[top - i];
    const uint64_t bin_mass = by_mass ? memory.mass_bins[top - i] : 0;
    if (rows_above + bin_rows >= rows || (by_mass && mass_above + bin_mass >= mass)) {
      control.bin = top - i;
      control.rows_above = rows_above;
      control.mass_above = mass_above;
      return;
    }
    rows_above += bin_rows;
    mass_above += bin_mass;
  }
}

// The bin from the top in which `rows` rows are reached, to control.bin and control.rows_above; ~0 where there are not
// so many. 256, 512 or 1,024 threads, behind a barrier; ends with one.
__device__ __forceinline__ void FindTopBin(const TopKMemory& memory, uint32_t rows) {
  TopKControl& control = *memory.control;
  if (threadIdx.x == 0) control.bin = ~0u;
  // One four or two of a thread, from the top.
  constexpr uint32_t kMostFours = kBins / 4 / 256;
  const uint32_t fours = max(1, kBins / 4 / blockDim.x), top = kBins / 4 - 1 - threadIdx.x * fours;
  uint4 own[kMostFours] = {};
  uint32_t sum = 0;
#pragma unroll
  for (uint32_t f = 0; f < kMostFours; ++f) {
    if (f < fours && threadIdx.x < kBins / 4) own[f] = reinterpret_cast<const uint4*>(memory.bins)[top - f];
    sum += own[f].x + own[f].y + own[f].z + own[f].w;
  }
  uint32_t above = SumBefore(sum, control.warp_rows).before;
#pragma unroll
  for (uint32_t f = 0; f < kMostFours; ++f) {
    const uint32_t of_bin[4] = {own[f].w, own[f].z, own[f].y, own[f].x};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (above < rows && above + of_bin[i] >= rows) {
        control.bin = (top - f) * 4 + 3 - i;
        control.rows_above = above;
      }
      above += of_bin[i];
    }
  }
  __syncthreads();
}

// The mass of a column that is chosen by `key`: where that is the softmaxes' sum, no score is read again.
template <ImportanceKind kKind>
__device__ __forceinline__ uint64_t MassOfColumn(const Importance<kKind>& importance, uint32_t key, uint32_t column) {
  if constexpr (kKind == ImportanceKind::kSoftmaxSum) return MassOf(FromOrderedKey(key));
  return MassOf(SoftmaxSumOf(importance, column));
}

template <ImportanceKind kKind>
__device__ __forceinline__ void AddToBin(uint32_t* bins, uint64_t* mass_bins, uint32_t bin, uint32_t key,
                                         uint32_t column, const CutRule& rule, const Importance<kKind>& importance) {
  atomicAdd(&bins[bin], rule.RowsOf(column));
  if (rule.by_mass) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&mass_bins[bin]),
              static_cast<unsigned long long>(MassOfColumn(importance, key, column)));
  }
}

// A cut is searched digit by digit: first among the keys, then among the columns of one key, from the top down.
struct DigitRange {
  uint32_t low, high;
  bool by_column = false;  // digits are of ~column, of what has `key`
  uint32_t key = 0;

  // Where a candidate lies in the range, if it does.
  __device__ __forceinline__ bool Holds(uint32_t candidate_key, uint32_t column, uint32_t* place) const {
    const uint32_t digit = by_column ? ~column : candidate_key;
    *place = digit - low;
    return digit >= low && digit <= high && (!by_column || candidate_key == key);
  }
  // Keeps one bin of 2^shift digits. Where that is one key, its columns are next.
  __device__ __forceinline__ void Narrow(uint32_t bin, int shift) {
    low += bin << shift;
    high = min(high, low + ((1u << shift) - 1));
    if (shift == 0 && !by_column) *this = {.low = 0, .high = ~0u, .by_column = true, .key = low};
  }
  // The least rank in the range.
  __device__ __forceinline__ uint64_t LeastRank() const {
    return by_column ? uint64_t{key} << 32 | low : uint64_t{low} << 32;
  }
};

// The candidates that a pass over all columns left, in the order in which they came.
struct GatheredColumns {
  const uint32_t *keys, *columns;
  __device__ __forceinline__ uint32_t Key(uint32_t i) const { return keys[i]; }
  __device__ __forceinline__ uint32_t Column(uint32_t i) const { return columns[i]; }
};
// The columns from `first` on, all of them.
struct ColumnsInOrder {
  const uint32_t* keys;
  uint32_t first;
  __device__ __forceinline__ uint32_t Key(uint32_t i) const { return keys[i]; }
  __device__ __forceinline__ uint32_t Column(uint32_t i) const { return first + i; }
};

// The least rank that is chosen among `count` candidates, 0 where all are. One block's threads; ends with a barrier.
template <typename Candidates, ImportanceKind kKind>
__device__ __forceinline__ uint64_t CutOf(const Candidates& candidates, uint32_t count, const CutRule& rule,
                                          const Importance<kKind>& importance, const TopKMemory& memory) {
  TopKControl& control = *memory.control;
  uint32_t rows = rule.rows;
  uint64_t mass = rule.mass;
  if (threadIdx.x == 0) {
    control.low = ~0u;
    control.high = 0;
    control.num_contested = 0;
  }
  ClearBins(memory, rule.by_mass);
  __syncthreads();
  DigitRange range{.low = ~0u, .high = 0};
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    range.low = min(range.low, candidates.Key(i));
    range.high = max(range.high, candidates.Key(i));
  }
  range.low = __reduce_min_sync(~0u, range.low);
  range.high = __reduce_max_sync(~0u, range.high);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&control.low, range.low);
    atomicMax(&control.high, range.high);
  }
  __syncthreads();
  range.low = control.low;
  range.high = control.high;
  for (bool first_round = true;; first_round = false) {
    const int shift = BinShift(range.low, range.high);
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
      const uint32_t column = candidates.Column(i);
      uint32_t place;
      if (range.Holds(candidates.Key(i), column, &place)) {
        AddToBin(memory.bins, memory.mass_bins, place >> shift, candidates.Key(i), column, rule, importance);
      }
    }
    __syncthreads();
    FindBin(memory, rows, mass, rule.by_mass);
    __syncthreads();
    const uint32_t bin = control.bin;
    if (bin == ~0u) return first_round ? 0 : range.LeastRank();
    const uint32_t bin_rows = memory.bins[bin];
    rows -= control.rows_above;
    mass -= control.mass_above;
    const bool is_one = shift == 0 && range.by_column;
    range.Narrow(bin, shift);
    if (is_one || (bin_rows == rows && !rule.by_mass && rule.unit_rows == 1)) return range.LeastRank();
    if (bin_rows <= kContested) break;
    __syncthreads();
    ClearBins(memory, rule.by_mass);
    __syncthreads();
  }
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    uint32_t place;
    if (range.Holds(candidates.Key(i), candidates.Column(i), &place)) {
      control.contested[atomicAdd(&control.num_contested, 1u)] = RankOf(candidates.Key(i), candidates.Column(i));
    }
  }
  __syncthreads();
  const uint32_t contested = control.num_contested;
  for (uint32_t at = threadIdx.x; at < contested; at += blockDim.x) {
    const uint64_t rank = control.contested[at];
    uint32_t rows_above = 0;
    uint64_t mass_above = 0;
    for (uint32_t i = 0; i < contested; ++i) {
      const uint64_t other = control.contested[i];
      if (other <= rank) continue;
      rows_above += rule.RowsOf(ColumnOf(other));
      if (rule.by_mass) mass_above += MassOfColumn(importance, KeyOf(other), ColumnOf(other));
    }
    const uint32_t own_rows = rule.RowsOf(ColumnOf(rank));
    const uint64_t own_mass = rule.by_mass ? MassOfColumn(importance, KeyOf(rank), ColumnOf(rank)) : 0;
    const bool wanted = rows_above < rows && !(rule.by_mass && mass_above >= mass);
    const bool last = rows_above + own_rows >= rows || (rule.by_mass && mass_above + own_mass >= mass);
    if (wanted && last) control.cut = rank;
  }
  __syncthreads();
  return control.cut;
}

}  // namespace winnow::device
