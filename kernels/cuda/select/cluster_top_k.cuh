#pragma once
#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/select/top_k_cut.cuh"

// The most important columns of a list, by the threads of a cluster.
//
// A pivot from a sample keeps few more columns than are wanted in one streaming pass: the candidates, gathered in the
// shared memory of the first block (the leader), which finds the exact cut among them. If the sample misled, so that
// too few or too many are left, the cut is searched by passes over all columns: the result never depends on the sample.

namespace winnow::device {

// Visits columns [first, last) of this block's part, kFours fours at once: visit(masks of those that are meant, column
// of the first four, values); the fours of a thread lie 4 * blockDim.x columns apart. The same trips for all threads.
template <int kFours, ImportanceKind kKind, typename Visit>
__device__ __forceinline__ void VisitPart(const Importance<kKind>& importance, uint32_t first, uint32_t last,
                                          Visit visit) {
  const uint32_t first_four = first / 4, fours = (last + 3) / 4 - first_four;
  const uint32_t rank = ClusterRank(), blocks = ClusterBlocks();
  const uint32_t begin = static_cast<uint32_t>(uint64_t{fours} * rank / blocks);
  const uint32_t end = static_cast<uint32_t>(uint64_t{fours} * (rank + 1) / blocks);
#pragma unroll 1
  for (uint32_t base = begin; base < end; base += kFours * blockDim.x) {
    float values[kFours][4];
    uint32_t meant = 0;
    const uint32_t column = (first_four + base + threadIdx.x) * 4;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      if (base + f * blockDim.x + threadIdx.x < end) {
        importance.Four(column + f * 4 * blockDim.x, last, values[f]);
        meant |= 15u << 4 * f;
      }
    }
    // The first and the last four may reach over the ends.
    if (column < first) meant &= ~0u << first - column;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      const uint32_t from = column + f * 4 * blockDim.x;
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
  const uint32_t samples = n <= 1u << 15 ? 1024 : n <= 1u << 16 ? 2048 : 4096, per_thread = samples / blockDim.x;
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
    const uint32_t i = s * blockDim.x + threadIdx.x;
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
          AddToBin(bins, mass_bins, place >> shift, OrderedKey(value), column + i, rule, importance);
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
    for (uint32_t word = threadIdx.x; word < (last + 31) / 32; word += blockDim.x) memory.bitmap[word] = 0;
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
          memory.columns[place] = column + f * 4 * blockDim.x + i;
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
      for (uint32_t i = threadIdx.x; i < min(count, memory.capacity); i += blockDim.x) {
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
  cut = CutOf(GatheredColumns{memory.keys, memory.columns}, count, rule, importance, memory);
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint32_t column = memory.columns[i];
    if (RankOf(memory.keys[i], column) >= cut) atomicOr(&memory.bitmap[column / 32], 1u << column % 32);
  }
  __syncthreads();
  if (blocks > 1) ClusterWait();
  return cut;
}

}  // namespace winnow::device
