#pragma once
#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/importance.cuh"

// The most important columns of a list, by the threads of a cluster.
//
// A pivot from a sample keeps few more columns than are wanted in one streaming pass: the candidates, gathered in the
// shared memory of the first block (the leader), which finds the exact cut among them. If the sample misled, so that
// too few or too many are left, the cut is searched by passes over all columns: the result never depends on the sample.
//
// Importance and column together, the lower column on top, make one 64-bit rank: ranks differ, so that a cut parts the
// chosen from the rest without a word about ties.

namespace winnow::cuda {

#ifndef ST
#define ST 512
#endif
inline constexpr int kSelectThreads = ST;
inline constexpr int kSelectWarps = kSelectThreads / 32;
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
  uint32_t warp_rows[kSelectWarps];
  uint64_t warp_mass[kSelectWarps];
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
  const uint32_t of_warp = lane < kSelectWarps ? warp_sums[lane] : 0;
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
#pragma unroll
  for (uint32_t bin = 0; bin < kBins; bin += kSelectThreads) memory.bins[bin + threadIdx.x] = 0;
  if (!by_mass) return;
  for (uint32_t bin = threadIdx.x; bin < kBins; bin += kSelectThreads) memory.mass_bins[bin] = 0;
}

// The bin, from the top, in which `rows` rows or `mass` are reached, and what lies above it; bin ~0 where neither is.
// All threads call it between barriers; the results are there after the next one.
__device__ __forceinline__ void FindBin(const TopKMemory& memory, uint32_t rows, uint64_t mass, bool by_mass) {
  constexpr int kPerThread = kBins / kSelectThreads;
  TopKControl& control = *memory.control;
  const uint32_t top = kBins - 1 - threadIdx.x * kPerThread;
  if (threadIdx.x == 0) control.bin = ~0u;
  uint32_t of_bin[kPerThread], own_rows = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) own_rows += of_bin[i] = memory.bins[top - i];
  uint32_t rows_above = SumBefore(own_rows, control.warp_rows).before;
  uint64_t own_mass = 0, mass_above = 0;
  if (by_mass) {
    for (int i = 0; i < kPerThread; ++i) own_mass += memory.mass_bins[top - i];
    mass_above = SumBefore(own_mass, control.warp_mass);
  }
  if (rows_above >= rows || (by_mass && mass_above >= mass)) return;
  if (rows_above + own_rows < rows && !(by_mass && mass_above + own_mass >= mass)) return;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint64_t bin_mass = by_mass ? memory.mass_bins[top - i] : 0;
    if (rows_above + of_bin[i] >= rows || (by_mass && mass_above + bin_mass >= mass)) {
      control.bin = top - i;
      control.rows_above = rows_above;
      control.mass_above = mass_above;
      return;
    }
    rows_above += of_bin[i];
    mass_above += bin_mass;
  }
}

template <ImportanceKind kKind>
__device__ __forceinline__ void AddToBin(uint32_t* bins, uint64_t* mass_bins, uint32_t bin, uint32_t column,
                                         const CutRule& rule, const Importance<kKind>& importance) {
  atomicAdd(&bins[bin], rule.RowsOf(column));
  if (rule.by_mass) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&mass_bins[bin]),
              static_cast<unsigned long long>(MassOf(SoftmaxSumOf(importance, column))));
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

// The least rank that is chosen among the leader's `count` candidates, 0 where all are. One block's threads; ends with
// a barrier.
template <ImportanceKind kKind>
__device__ __forceinline__ uint64_t CutOfCandidates(const TopKMemory& memory, uint32_t count, const CutRule& rule,
                                                    const Importance<kKind>& importance) {
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
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    range.low = min(range.low, memory.keys[i]);
    range.high = max(range.high, memory.keys[i]);
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
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint32_t column = memory.columns[i];
      uint32_t place;
      if (range.Holds(memory.keys[i], column, &place)) {
        AddToBin(memory.bins, memory.mass_bins, place >> shift, column, rule, importance);
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
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    uint32_t place;
    if (range.Holds(memory.keys[i], memory.columns[i], &place)) {
      control.contested[atomicAdd(&control.num_contested, 1u)] = RankOf(memory.keys[i], memory.columns[i]);
    }
  }
  __syncthreads();
  const uint32_t contested = control.num_contested;
  if (threadIdx.x < contested) {
    const uint64_t rank = control.contested[threadIdx.x];
    uint32_t rows_above = 0;
    uint64_t mass_above = 0;
    for (uint32_t i = 0; i < contested; ++i) {
      const uint64_t other = control.contested[i];
      if (other <= rank) continue;
      rows_above += rule.RowsOf(ColumnOf(other));
      if (rule.by_mass) mass_above += MassOf(SoftmaxSumOf(importance, ColumnOf(other)));
    }
    const uint32_t own_rows = rule.RowsOf(ColumnOf(rank));
    const uint64_t own_mass = rule.by_mass ? MassOf(SoftmaxSumOf(importance, ColumnOf(rank))) : 0;
    const bool wanted = rows_above < rows && !(rule.by_mass && mass_above >= mass);
    const bool last = rows_above + own_rows >= rows || (rule.by_mass && mass_above + own_mass >= mass);
    if (wanted && last) control.cut = rank;
  }
  __syncthreads();
  return control.cut;
}

// Visits columns [first, last) of this block's part, kFours fours at once: visit(masks of those that are meant, column
// of the first four, values); the fours of a thread lie kFourStride columns apart. The same trips for all threads.
inline constexpr uint32_t kFourStride = 4 * kSelectThreads;
template <int kFours, ImportanceKind kKind, typename Visit>
__device__ __forceinline__ void VisitPart(const Importance<kKind>& importance, uint32_t first, uint32_t last,
                                          Visit visit) {
  const uint32_t first_four = first / 4, fours = (last + 3) / 4 - first_four;
  const uint32_t rank = ClusterRank(), blocks = ClusterBlocks();
  const uint32_t begin = static_cast<uint32_t>(uint64_t{fours} * rank / blocks);
  const uint32_t end = static_cast<uint32_t>(uint64_t{fours} * (rank + 1) / blocks);
#pragma unroll 1
  for (uint32_t base = begin; base < end; base += kFours * kSelectThreads) {
    float values[kFours][4];
    uint32_t meant = 0;
    const uint32_t column = (first_four + base + threadIdx.x) * 4;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      if (base + f * kSelectThreads + threadIdx.x < end) {
        importance.Four(column + f * kFourStride, last, values[f]);
        meant |= 15u << 4 * f;
      }
    }
    // The first and the last four may reach over the ends.
    if (column < first) meant &= ~0u << first - column;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      const uint32_t from = column + f * kFourStride;
      if ((meant >> 4 * f & 15) != 0 && from + 4 > last) meant &= ~(15u << 4 * f) | ((1u << last - from) - 1) << 4 * f;
    }
    visit(meant, column, values);
  }
}

// A value that, by the sample, has at least `rows` of the n columns at or above it, with four standard deviations to
// spare; -infinity where the sample cannot tell. All threads; every block of the cluster finds the same.
template <ImportanceKind kKind>
__device__ __forceinline__ float SamplePivot(const Importance<kKind>& importance, uint32_t first, uint32_t n,
                                             uint32_t rows, const TopKMemory& memory) {
  constexpr int kMostPerThread = 8;
  TopKControl& control = *memory.control;
  const uint32_t per_thread = n <= 1u << 15 ? 2 : n <= 1u << 16 ? 4 : kMostPerThread;
  const uint32_t samples = per_thread * kSelectThreads;
  const float expected = static_cast<float>(rows) / static_cast<float>(n) * static_cast<float>(samples);
  const uint32_t wanted = static_cast<uint32_t>(expected + 4 * sqrtf(expected) + 4);
  if (wanted >= samples) return -INFINITY;
  if (threadIdx.x == 0) {
    control.low = ~0u;
    control.high = 0;
  }
  ClearBins(memory, false);
  const float width = static_cast<float>(n) / static_cast<float>(samples);
  uint32_t keys[kMostPerThread], low = ~0u, high = 0;
#pragma unroll
  for (int s = 0; s < kMostPerThread; ++s) {
    if (s >= per_thread) break;
    // One column of each stride, at a place in it that has no period.
    const uint32_t i = s * kSelectThreads + threadIdx.x;
    const float place = (static_cast<float>(i) + static_cast<float>(i * 2654435761u >> 8) * 0x1p-24f) * width;
    keys[s] = OrderedKey(importance.At(first + min(static_cast<uint32_t>(place), n - 1)));
  }
#pragma unroll
  for (int s = 0; s < kMostPerThread; ++s) {
    if (s >= per_thread) break;
    low = min(low, keys[s]);
    high = max(high, keys[s]);
  }
  __syncthreads();
  low = __reduce_min_sync(~0u, low);
  high = __reduce_max_sync(~0u, high);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&control.low, low);
    atomicMax(&control.high, high);
  }
  __syncthreads();
  low = control.low;
  const int shift = BinShift(low, control.high);
#pragma unroll
  for (int s = 0; s < kMostPerThread; ++s) {
    if (s < per_thread) atomicAdd(&memory.bins[(keys[s] - low) >> shift], 1u);
  }
  __syncthreads();
  FindBin(memory, wanted, 0, false);
  __syncthreads();
  return FromOrderedKey(low + (control.bin << shift));
}

// The cut by passes over all columns, for lists whose sample misled. All threads of the cluster.
template <ImportanceKind kKind>
__device__ __noinline__ uint64_t CutOfAll(const Importance<kKind> importance, uint32_t first, uint32_t last,
                                          const CutRule rule, const TopKMemory memory) {
  TopKControl& control = *memory.control;
  TopKControl& leader = *OfRank(&control, 0);
  const bool leads = ClusterRank() == 0;
  uint32_t* bins = OfRank(memory.bins, 0);
  uint64_t* mass_bins = rule.by_mass ? OfRank(memory.mass_bins, 0) : nullptr;
  DigitRange range{.low = 0, .high = ~0u};
  uint32_t rows = rule.rows;
  uint64_t mass = rule.mass, cut = 0;
  for (bool first_round = true;; first_round = false) {
    if (leads) ClearBins(memory, rule.by_mass);
    ClusterSync();
    const int shift = BinShift(range.low, range.high);
    VisitPart<1>(importance, first, last, [&](uint32_t meant, uint32_t column, const float(&values)[1][4]) {
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const float value = i < 2 ? (i == 0 ? values[0][0] : values[0][1]) : (i == 2 ? values[0][2] : values[0][3]);
        uint32_t place;
        if ((meant >> i & 1) && range.Holds(OrderedKey(value), column + i, &place)) {
          AddToBin(bins, mass_bins, place >> shift, column + i, rule, importance);
        }
      }
    });
    ClusterSync();
    if (leads) {
      FindBin(memory, rows, mass, rule.by_mass);
      __syncthreads();
    }
    ClusterSync();
    const uint32_t bin = leader.bin;
    if (bin == ~0u) {
      cut = first_round ? 0 : range.LeastRank();
      break;
    }
    rows -= leader.rows_above;
    mass -= leader.mass_above;
    const bool is_one = shift == 0 && range.by_column;
    range.Narrow(bin, shift);
    if (is_one) {
      cut = range.LeastRank();
      break;
    }
    ClusterSync();
  }
  ClusterSync();
  return cut;
}

// Marks the chosen ones of columns [first, last) in the leader's bitmap, whose first (last + 31) / 32 words are set.
// `most`: at least as many columns as the rule can choose, alike in all blocks; of the rule itself only the leader's
// counts. Returns the cut: the least rank chosen, 0 where all are. All threads of the cluster call it; behind it the
// leader's threads see the bitmap.
template <ImportanceKind kKind>
__device__ __forceinline__ uint64_t MarkTopK(const Importance<kKind>& importance, uint32_t first, uint32_t last,
                                             uint32_t most, const CutRule& rule, const TopKMemory& memory) {
  constexpr int kFours = kKind == ImportanceKind::kValues ? 4 : 2;
  TopKControl& control = *memory.control;
  const uint32_t n = last > first ? last - first : 0, blocks = ClusterBlocks();
  const bool leads = ClusterRank() == 0;
  if (leads) {
    for (uint32_t word = threadIdx.x; word < (last + 31) / 32; word += kSelectThreads) memory.bitmap[word] = 0;
  }
  if (n == 0 || most == 0) {
    __syncthreads();
    return 0;
  }
  if (threadIdx.x == 0) control.num_candidates = 0;
  if (blocks > 1) ClusterArrive();
  float pivot = -INFINITY;
  if (n > memory.capacity) {
    pivot = SamplePivot(importance, first, n, most, memory);
  } else {
    __syncthreads();
  }

  const int lane = threadIdx.x % 32;
  VisitPart<kFours>(importance, first, last, [&](uint32_t meant, uint32_t column, const float(&values)[kFours][4]) {
    uint32_t kept = 0;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) kept |= values[f][i] >= pivot ? 1u << (4 * f + i) : 0;
    }
    kept &= meant;
    const uint32_t own = __popc(kept);
    uint32_t place = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, place, step);
      if (lane >= step) place += before;
    }
    uint32_t base = 0;
    if (lane == 31 && place > 0) base = atomicAdd(&control.num_candidates, place);
    place += __shfl_sync(~0u, base, 31) - own;
    const bool fits = place + own <= memory.capacity;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((kept >> (4 * f + i) & 1) != 0 && fits) {
          memory.keys[place] = OrderedKey(values[f][i]);
          memory.columns[place] = column + f * kFourStride + i;
          ++place;
        }
      }
    }
  });
  __syncthreads();
  uint32_t count = control.num_candidates;
  if (blocks > 1) {
    ClusterWait();  // the leader's count was 0 before others add to it
    TopKControl& leader = *OfRank(&control, 0);
    if (!leads && count > 0) {
      if (threadIdx.x == 0) control.push_base = atomicAdd(&leader.num_candidates, count);
      __syncthreads();
      uint32_t *keys = OfRank(memory.keys, 0), *columns = OfRank(memory.columns, 0);
      const uint32_t base = control.push_base;
      for (uint32_t i = threadIdx.x; i < min(count, memory.capacity); i += kSelectThreads) {
        if (base + i < memory.capacity) {
          keys[base + i] = memory.keys[i];
          columns[base + i] = memory.columns[i];
        }
      }
    }
    ClusterSync();
    count = leader.num_candidates;
    ClusterArrive();  // has read the count
    if (!leads) ClusterWait();
  }
  uint64_t cut;
  if (count > memory.capacity || (count < n && count < most)) {
    if (blocks > 1 && leads) ClusterWait();
    cut = CutOfAll<kKind>(importance, first, last, rule, memory);
    uint32_t* bitmap = OfRank(memory.bitmap, 0);
    VisitPart<1>(importance, first, last, [&](uint32_t meant, uint32_t column, const float(&values)[1][4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((meant >> i & 1) && RankOf(OrderedKey(values[0][i]), column + i) >= cut) {
          atomicOr(&bitmap[(column + i) / 32], 1u << (column + i) % 32);
        }
      }
    });
    ClusterSync();
    return cut;
  }
  if (!leads) return 0;
  cut = CutOfCandidates(memory, count, rule, importance);
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const uint32_t column = memory.columns[i];
    if (RankOf(memory.keys[i], column) >= cut) atomicOr(&memory.bitmap[column / 32], 1u << column % 32);
  }
  __syncthreads();
  if (blocks > 1) ClusterWait();
  return cut;
}

}  // namespace winnow::cuda
