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

inline constexpr int kSelectThreads = 512;
inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr uint32_t kBins = 2048;
inline constexpr int kBinBits = 11;
inline constexpr uint32_t kContested = 512;           // ranks that are compared with one another
inline constexpr float kMassUnit = 1099511627776.0f;  // 2^40: masses are summed as integers, the same in any order

// How many columns are chosen: the fewest that hold `rows` rows, or with by_mass before that `mass`.
struct CutRule {
  uint32_t rows;
  uint64_t mass;                 // in 1 / kMassUnit
  bool by_mass;                  // importance is a sum of softmaxes
  uint32_t unit_rows;            // rows of a column: 1, or a page's
  uint32_t first_row, last_row;  // with pages, what clips them

  __device__ uint32_t RowsOf(uint32_t column) const {
    if (unit_rows == 1) return 1;
    return min((column + 1) * unit_rows, last_row) - max(column * unit_rows, first_row);
  }
};

// Shared memory of a block; control, and parts whose sizes the launch fixes.
struct TopKControl {
  uint32_t num_candidates;  // the leader's grows beyond the capacity where they do not fit
  uint32_t push_base;
  uint64_t low, high;
  uint64_t cut;
  uint64_t rows_above, mass_above;
  uint32_t bin, num_contested;
  uint64_t warp_rows[kSelectWarps], warp_mass[kSelectWarps];
  uint64_t contested[kContested];
};
struct TopKMemory {
  TopKControl* control;
  uint64_t* candidates;  // ranks
  uint32_t capacity;
  uint32_t* bins;       // [kBins]
  uint64_t* mass_bins;  // [kBins], by_mass only
  uint32_t* bitmap;     // bits of the chosen columns, the leader's
};

__device__ __forceinline__ uint64_t RankOf(float value, uint32_t column) {
  return uint64_t{OrderedKey(value)} << 32 | ~column;
}
__device__ __forceinline__ uint32_t ColumnOf(uint64_t rank) {
  return ~static_cast<uint32_t>(rank);
}
__device__ __forceinline__ uint64_t MassOf(float share) {
  return __float2ull_rn(share * kMassUnit);
}

// Sums over the threads before this one; all threads call it. A barrier must lie between two calls.
__device__ __forceinline__ uint64_t SumBefore(uint64_t value, uint64_t* warp_sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  uint64_t base = 0;
#pragma unroll
  for (int w = 0; w < kSelectWarps; ++w) base += w < warp ? warp_sums[w] : 0;
  return base + sum - value;
}

__device__ __forceinline__ int BinShift(uint64_t low, uint64_t high) {
  return max(0, 64 - __clzll(static_cast<long long>(high - low)) - kBinBits);
}

__device__ __forceinline__ void ClearBins(const TopKMemory& memory, bool by_mass) {
  for (uint32_t bin = threadIdx.x; bin < kBins; bin += kSelectThreads) {
    memory.bins[bin] = 0;
    if (by_mass) memory.mass_bins[bin] = 0;
  }
}

// The bin, from the top, in which `rows` rows or `mass` are reached, and what lies above it; bin ~0 where neither is.
// All threads call it between barriers; the results are there after the next one.
__device__ __forceinline__ void FindBin(const TopKMemory& memory, uint64_t rows, uint64_t mass, bool by_mass) {
  constexpr int kPerThread = kBins / kSelectThreads;
  TopKControl& control = *memory.control;
  const uint32_t top = kBins - 1 - threadIdx.x * kPerThread;
  if (threadIdx.x == 0) control.bin = ~0u;
  uint64_t own_rows = 0, own_mass = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    own_rows += memory.bins[top - i];
    if (by_mass) own_mass += memory.mass_bins[top - i];
  }
  uint64_t rows_above = SumBefore(own_rows, control.warp_rows);
  uint64_t mass_above = by_mass ? SumBefore(own_mass, control.warp_mass) : 0;
  if (rows_above >= rows || (by_mass && mass_above >= mass)) return;
  if (rows_above + own_rows < rows && !(by_mass && mass_above + own_mass >= mass)) return;
  for (int i = 0; i < kPerThread; ++i) {
    const uint64_t bin_rows = memory.bins[top - i], bin_mass = by_mass ? memory.mass_bins[top - i] : 0;
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

template <ImportanceKind kKind>
__device__ __forceinline__ void AddToBin(const TopKMemory& memory, uint32_t* bins, uint64_t* mass_bins, uint64_t rank,
                                         uint64_t low, int shift, const CutRule& rule,
                                         const Importance<kKind>& importance) {
  const uint32_t bin = static_cast<uint32_t>((rank - low) >> shift), column = ColumnOf(rank);
  atomicAdd(&bins[bin], rule.RowsOf(column));
  if (rule.by_mass) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&mass_bins[bin]),
              static_cast<unsigned long long>(MassOf(SoftmaxSumOf(importance, column))));
  }
}

// The least rank that is chosen among the leader's `count` candidates, 0 where all are. One block's threads; ends with
// a barrier.
template <ImportanceKind kKind>
__device__ __forceinline__ uint64_t CutOfCandidates(const TopKMemory& memory, uint32_t count, const CutRule& rule,
                                                    const Importance<kKind>& importance) {
  TopKControl& control = *memory.control;
  uint64_t rows = rule.rows, mass = rule.mass;
  if (threadIdx.x == 0) {
    control.low = ~uint64_t{0};
    control.high = 0;
    control.num_contested = 0;
  }
  __syncthreads();
  {
    uint32_t low = ~0u, high = 0;
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint32_t key = static_cast<uint32_t>(memory.candidates[i] >> 32);
      low = min(low, key);
      high = max(high, key);
    }
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (threadIdx.x % 32 == 0) {
      atomicMin(reinterpret_cast<unsigned long long*>(&control.low), static_cast<unsigned long long>(low) << 32);
      atomicMax(reinterpret_cast<unsigned long long*>(&control.high),
                static_cast<unsigned long long>(high) << 32 | 0xffffffffu);
    }
    ClearBins(memory, rule.by_mass);
    __syncthreads();
  }
  uint64_t low = control.low, high = control.high;
  for (bool first_round = true;; first_round = false) {
    const int shift = BinShift(low, high);
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint64_t rank = memory.candidates[i];
      if (rank >= low && rank <= high) {
        AddToBin(memory, memory.bins, memory.mass_bins, rank, low, shift, rule, importance);
      }
    }
    __syncthreads();
    FindBin(memory, rows, mass, rule.by_mass);
    __syncthreads();
    if (control.bin == ~0u) return first_round ? 0 : low;
    const uint64_t bin_low = low + (uint64_t{control.bin} << shift);
    const uint32_t bin_rows = memory.bins[control.bin];
    rows -= control.rows_above;
    mass -= control.mass_above;
    if (shift == 0 || (bin_rows == rows && !rule.by_mass && rule.unit_rows == 1)) return bin_low;
    low = bin_low;
    high = min(high, bin_low + ((uint64_t{1} << shift) - 1));
    if (bin_rows <= kContested) break;
    __syncthreads();
    ClearBins(memory, rule.by_mass);
    __syncthreads();
  }
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const uint64_t rank = memory.candidates[i];
    if (rank >= low && rank <= high) control.contested[atomicAdd(&control.num_contested, 1u)] = rank;
  }
  __syncthreads();
  const uint32_t contested = control.num_contested;
  if (threadIdx.x < contested) {
    const uint64_t rank = control.contested[threadIdx.x];
    uint64_t rows_above = 0, mass_above = 0;
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

// Visits columns [first, last) of this block's part in fours: visit(column of the four, mask of those that are meant,
// values).
template <ImportanceKind kKind, typename Visit>
__device__ __forceinline__ void VisitPart(const Importance<kKind>& importance, uint32_t first, uint32_t last,
                                          Visit visit) {
  const uint32_t first_four = first / 4, fours = (last + 3) / 4 - first_four;
  const uint32_t rank = ClusterRank(), blocks = ClusterBlocks();
  const uint32_t begin = static_cast<uint32_t>(uint64_t{fours} * rank / blocks);
  const uint32_t end = static_cast<uint32_t>(uint64_t{fours} * (rank + 1) / blocks);
  constexpr int kBatch = 2;
  for (uint32_t base = begin; base < end; base += kBatch * kSelectThreads) {  // the same trips for all threads
    float values[kBatch][4];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t four = base + b * kSelectThreads + threadIdx.x;
      if (four < end) importance.Four((first_four + four) * 4, last, values[b]);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t four = base + b * kSelectThreads + threadIdx.x, column = (first_four + four) * 4;
      uint32_t meant = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (four < end && column + i >= first && column + i < last) meant |= 1u << i;
      }
      visit(column, meant, values[b]);
    }
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
    control.low = ~uint64_t{0};
    control.high = 0;
  }
  ClearBins(memory, false);
  __syncthreads();
  uint32_t keys[kMostPerThread], low = ~0u, high = 0;
#pragma unroll
  for (int s = 0; s < kMostPerThread; ++s) {
    if (s >= per_thread) break;
    // One column of each stride, at a place in it that has no period.
    const uint32_t i = s * kSelectThreads + threadIdx.x;
    const uint32_t begin = static_cast<uint32_t>(uint64_t{n} * i / samples);
    const uint32_t width = static_cast<uint32_t>(uint64_t{n} * (i + 1) / samples) - begin;
    const uint32_t place = ((i * 2654435761u >> 16) * width) >> 16;
    keys[s] = OrderedKey(importance.At(first + begin + place));
    low = min(low, keys[s]);
    high = max(high, keys[s]);
  }
  low = __reduce_min_sync(~0u, low);
  high = __reduce_max_sync(~0u, high);
  if (threadIdx.x % 32 == 0) {
    atomicMin(reinterpret_cast<unsigned long long*>(&control.low), static_cast<unsigned long long>(low));
    atomicMax(reinterpret_cast<unsigned long long*>(&control.high), static_cast<unsigned long long>(high));
  }
  __syncthreads();
  const uint32_t least = static_cast<uint32_t>(control.low);
  const int shift = BinShift(control.low, control.high);
#pragma unroll
  for (int s = 0; s < kMostPerThread; ++s) {
    if (s < per_thread) atomicAdd(&memory.bins[(keys[s] - least) >> shift], 1u);
  }
  __syncthreads();
  FindBin(memory, wanted, 0, false);
  __syncthreads();
  return FromOrderedKey(least + (control.bin << shift));
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
  uint64_t low = 0, high = ~uint64_t{0}, rows = rule.rows, mass = rule.mass, cut = 0;
  for (bool first_round = true;; first_round = false) {
    if (leads) ClearBins(memory, rule.by_mass);
    ClusterSync();
    const int shift = BinShift(low, high);
    VisitPart(importance, first, last, [&](uint32_t column, uint32_t meant, const float(&values)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint64_t rank = RankOf(values[i], column + i);
        if ((meant >> i & 1) && rank >= low && rank <= high) {
          AddToBin(memory, bins, mass_bins, rank, low, shift, rule, importance);
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
      cut = first_round ? 0 : low;
      break;
    }
    rows -= leader.rows_above;
    mass -= leader.mass_above;
    low += uint64_t{bin} << shift;
    if (shift == 0) {
      cut = low;
      break;
    }
    high = min(high, low + ((uint64_t{1} << shift) - 1));
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
  if (n > memory.capacity) pivot = SamplePivot(importance, first, n, most, memory);
  if (blocks == 1) __syncthreads();

  const int lane = threadIdx.x % 32;
  VisitPart(importance, first, last, [&](uint32_t column, uint32_t meant, const float(&values)[4]) {
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((meant >> i & 1) && values[i] >= pivot) kept |= 1u << i;
    }
    const uint32_t own = __popc(kept);
    const uint32_t lanes = __ballot_sync(~0u, own != 0);
    if (lanes == 0) return;
    // Numbers of up to four are summed over the lanes below by their bits.
    const uint32_t ones = __ballot_sync(~0u, own & 1), twos = __ballot_sync(~0u, own & 2);
    const uint32_t fours = __ballot_sync(~0u, own & 4), below = (1u << lane) - 1;
    uint32_t place = 0;
    if (lane == 0) place = atomicAdd(&control.num_candidates, __popc(ones) + 2 * __popc(twos) + 4 * __popc(fours));
    place = __shfl_sync(~0u, place, 0) + __popc(ones & below) + 2 * __popc(twos & below) + 4 * __popc(fours & below);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((kept >> i & 1) == 0) continue;
      if (place < memory.capacity) memory.candidates[place] = RankOf(values[i], column + i);
      ++place;
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
      uint64_t* to = OfRank(memory.candidates, 0);
      const uint32_t base = control.push_base;
      for (uint32_t i = threadIdx.x; i < min(count, memory.capacity); i += kSelectThreads) {
        if (base + i < memory.capacity) to[base + i] = memory.candidates[i];
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
    VisitPart(importance, first, last, [&](uint32_t column, uint32_t meant, const float(&values)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((meant >> i & 1) && RankOf(values[i], column + i) >= cut) {
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
    const uint64_t rank = memory.candidates[i];
    if (rank >= cut) atomicOr(&memory.bitmap[ColumnOf(rank) / 32], 1u << ColumnOf(rank) % 32);
  }
  __syncthreads();
  if (blocks > 1) ClusterWait();
  return cut;
}

}  // namespace winnow::cuda
