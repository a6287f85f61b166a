#pragma once
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/select/top_k_cut.cuh"
#include "kernels/cuda/select/value_chunks.cuh"
#include "kernels/device/params/selection.h"

// The k largest of a list of values by one block or two, from compute capability 9.0 on. The list is read once: what is
// at or above a pivot, which a sample puts a little below the k-th value, is collected in shared memory with its
// position, and counted by bin on the way. Where too much comes, what has been collected is cut down to the k best and
// the pivot raised; where too little does, the list is read again without a pivot. So the result never depends on the
// sample.

namespace winnow::device {

inline constexpr uint32_t kMostValueBlocks = 2;  // of a list

// Sizes of a launch.
struct ValueTopKShape {
  uint32_t blocks, threads;
  uint32_t capacity;      // candidates of a block: even
  uint32_t stages;        // of a warp's ring
  uint32_t bitmap_words;  // in the rings' place, when those have done
  uint32_t bytes;
};

struct ValueTopKControl {
  TopKControl top_k;
  uint64_t received;  // barrier of the leader: the other block's candidates
  uint32_t num_received;
  uint32_t again;          // the leader's word to the other block
  uint32_t num_collected;  // where too much came
  alignas(8) uint64_t barriers[kMaxSelectWarps][kMostChunkStages];
};

struct ValueTopKMemory {
  ValueTopKControl& control;
  uint32_t* bins;      // [kBins]
  uint64_t* ranks;     // [capacity] of the block's candidates
  uint64_t* received;  // [capacity] of the other block's, in the leader
  uint8_t* rings;
  uint32_t* bitmap;

  static constexpr uint32_t kControlBytes = (sizeof(ValueTopKControl) + 127) / 128 * 128;
  static uint32_t FixedBytes() { return kControlBytes + kBins * sizeof(uint32_t); }
  __device__ __forceinline__ ValueTopKMemory(uint8_t* base, const ValueTopKShape& shape)
      : control(*reinterpret_cast<ValueTopKControl*>(base)),
        bins(reinterpret_cast<uint32_t*>(base + kControlBytes)),
        ranks(reinterpret_cast<uint64_t*>(bins + kBins)),
        received(ranks + shape.capacity),
        rings(reinterpret_cast<uint8_t*>(ranks + shape.blocks * shape.capacity)),
        bitmap(reinterpret_cast<uint32_t*>(rings)) {}
  __device__ __forceinline__ TopKMemory TopK() const {
    TopKMemory memory = {};
    memory.control = &control.top_k;
    memory.bins = bins;
    return memory;
  }
};

// Words, in fours. All threads; the last four may reach beyond them.
__device__ __forceinline__ void ClearFours(uint32_t* words, uint32_t count) {
  for (uint32_t i = threadIdx.x; i < (count + 3) / 4; i += blockDim.x) reinterpret_cast<uint4*>(words)[i] = {};
}

// Ranks of candidates, of the block's own and then of those it received.
struct RankedColumns {
  const uint64_t *own, *received;
  uint32_t num_own;
  __device__ __forceinline__ uint64_t Rank(uint32_t i) const { return i < num_own ? own[i] : received[i - num_own]; }
  __device__ __forceinline__ uint32_t Key(uint32_t i) const { return KeyOf(Rank(i)); }
  __device__ __forceinline__ uint32_t Column(uint32_t i) const { return ColumnOf(Rank(i)); }
};

// Keys from `low` on, in bins of 2^shift; the last one also holds what is above.
struct PivotBins {
  uint32_t low;
  int shift;
  __device__ __forceinline__ uint32_t Of(uint32_t key) const { return min((key - low) >> shift, kBins - 1); }
};

// A pivot that, by a sample, has at least `rows` of the n values at or above it, with four standard deviations to
// spare; -infinity where the sample cannot tell. Values are sampled by sectors of eight, as memory reads no less. All
// threads; both blocks of a list find the same. `aligned` is the first of the values, or up to three behind it. Calls
// behind_loads() when the sample is on its way. Bins are empty before and behind it; ends with a barrier.
template <typename BehindLoads>
__device__ __forceinline__ PivotBins SampledPivot(const float* aligned, uint32_t n, uint32_t rows,
                                                  const TopKMemory& memory, BehindLoads behind_loads) {
  constexpr int kMostPerThread = 4;  // fours: halves of sectors
  TopKControl& control = *memory.control;
  const uint32_t samples = n <= 1u << 16 ? 2048 : 4096;
  const float expected = static_cast<float>(rows) / static_cast<float>(n) * static_cast<float>(samples);
  uint32_t wanted = static_cast<uint32_t>(expected + 4 * sqrtf(expected) + 4);
  const uint32_t sectors = n / 8 - 1;
  const float width = static_cast<float>(sectors) / static_cast<float>(samples / 8);
  uint4 fours[kMostPerThread];
  uint32_t low = ~0u, high = 0;
  const auto is_sampled = [&](int s) { return s * blockDim.x + threadIdx.x < samples / 4; };
#pragma unroll
  for (int s = 0; s < kMostPerThread; ++s) {
    if (!is_sampled(s)) break;
    // One sector of each stride, at a place in it that has no period.
    const uint32_t i = (s * blockDim.x + threadIdx.x) / 2;
    const float place = (static_cast<float>(i) + static_cast<float>(i * 2654435761u >> 8) * 0x1p-24f) * width;
    const uint32_t sector = min(static_cast<uint32_t>(place), sectors - 1);
    fours[s] = reinterpret_cast<const uint4*>(aligned)[2 * sector + threadIdx.x % 2];
  }
  behind_loads();
  if (threadIdx.x == 0) {
    control.low = ~0u;
    control.high = 0;
  }
#pragma unroll
  for (int s = 0; s < kMostPerThread; ++s) {
    if (!is_sampled(s)) break;
    fours[s] = {OrderedKey(__uint_as_float(fours[s].x)), OrderedKey(__uint_as_float(fours[s].y)),
                OrderedKey(__uint_as_float(fours[s].z)), OrderedKey(__uint_as_float(fours[s].w))};
    low = min(min(low, min(fours[s].x, fours[s].y)), min(fours[s].z, fours[s].w));
    high = max(max(high, max(fours[s].x, fours[s].y)), max(fours[s].z, fours[s].w));
  }
  __syncthreads();
  low = __reduce_min_sync(~0u, low);
  high = __reduce_max_sync(~0u, high);
  if (threadIdx.x % 32 == 0 && low <= high) {
    atomicMin(&control.low, low);
    atomicMax(&control.high, high);
  }
  __syncthreads();
  low = control.low;
  const uint32_t greatest = control.high;
  high = greatest;
  if (wanted >= samples) {
    __syncthreads();
    return {OrderedKey(-INFINITY), BinShift(OrderedKey(-INFINITY), greatest)};
  }
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const int shift = BinShift(low, high);
    const auto count = [&](uint32_t key) {
      if (key >= low && key <= high) atomicAdd(&memory.bins[(key - low) >> shift], 1u);
    };
#pragma unroll
    for (int s = 0; s < kMostPerThread; ++s) {
      if (!is_sampled(s)) break;
      count(fours[s].x), count(fours[s].y), count(fours[s].z), count(fours[s].w);
    }
    __syncthreads();
    FindTopBin(memory, wanted);
    wanted -= control.rows_above;
    low += control.bin << shift;
    high = min(high, low + ((1u << shift) - 1));
    ClearFours(memory.bins, kBins);
    __syncthreads();
    if (shift == 0) break;
  }
  return {low, BinShift(low, greatest)};
}

// Adds to the candidates what a warp's lanes have: for each bit i of `kept` value_at(i) of column_at(i). False, and
// nothing added, where they find no room.
template <typename ValueAt, typename ColumnAt>
__device__ __forceinline__ bool Collect(const ValueTopKMemory& memory, uint32_t capacity, const PivotBins& bins,
                                        uint32_t kept, ValueAt value_at, ColumnAt column_at) {
  const uint32_t lane = threadIdx.x % 32, own = __popc(kept);
  uint32_t place = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, place, step);
    if (lane >= step) place += before;
  }
  uint32_t base = 0;
  if (lane == 31 && place > 0) base = atomicAdd(&memory.control.top_k.num_candidates, place);
  const uint32_t total = __shfl_sync(~0u, place, 31);
  if (total == 0) return true;
  base = __shfl_sync(~0u, base, 31);
  if (base + total > capacity) {
    // Nothing finds room behind it, so that what has been stored are the candidates below the first such base.
    if (base <= capacity && lane == 0) memory.control.num_collected = base;
    return false;
  }
  uint64_t* to = memory.ranks + base + place - own;
#pragma unroll 1
  for (; kept != 0; kept &= kept - 1) {
    const uint32_t i = __ffs(static_cast<int>(kept)) - 1;
    const uint32_t key = OrderedKey(value_at(i));
    *to++ = RankOf(key, column_at(i));
    atomicAdd(&memory.bins[bins.Of(key)], 1u);
  }
  return true;
}

// Leaves the `rows` best of a block's candidates, counted in bins from the least of them on. Returns the cut. All
// threads, between barriers.
__device__ __noinline__ uint64_t CutDown(const ValueTopKMemory memory, uint32_t rows, PivotBins* bins) {
  const uint32_t count = memory.control.num_collected;
  const TopKMemory top_k = memory.TopK();
  const CutRule rule{.rows = rows, .mass = 0, .by_mass = false, .unit_rows = 1, .first_row = 0, .last_row = 0};
  const uint64_t cut =
      CutOf(RankedColumns{memory.ranks, nullptr, count}, count, rule, Importance<ImportanceKind::kValues>{}, top_k);
  __syncthreads();
  const uint32_t low = KeyOf(cut);
  ClearFours(memory.bins, kBins);
  uint32_t left = 0;
  for (uint32_t base = 0; base < count; base += blockDim.x) {
    const uint32_t i = base + threadIdx.x;
    const uint64_t rank = i < count ? memory.ranks[i] : 0;
    const bool stays = i < count && rank >= cut;
    const SumsOfThreads sums = SumBefore(stays ? 1u : 0u, top_k.control->warp_rows);
    if (stays) {
      memory.ranks[left + sums.before] = rank;
      atomicAdd(&memory.bins[PivotBins{low, bins->shift}.Of(KeyOf(rank))], 1u);
    }
    left += sums.all;
    __syncthreads();
  }
  if (threadIdx.x == 0) top_k.control->num_candidates = left;
  bins->low = low;
  return cut;
}

// Marks the `rows` best of the candidates in the bitmap, whose first (last + 31) / 32 words it sets. All are counted in
// bins. All threads, behind a barrier; ends with one.
__device__ __forceinline__ void MarkBest(const ValueTopKMemory& memory, const RankedColumns& candidates, uint32_t count,
                                         uint32_t rows, uint32_t last, const PivotBins& bins) {
  const TopKMemory top_k = memory.TopK();
  TopKControl& control = *top_k.control;
  ClearFours(memory.bitmap, (last + 31) / 32);
  if (threadIdx.x == 0) control.num_contested = 0;
  FindTopBin(top_k, rows);
  const auto mark = [&](uint64_t rank) {
    const uint32_t column = ColumnOf(rank);
    atomicOr(&memory.bitmap[column / 32], 1u << column % 32);
  };
  const uint32_t bin = control.bin, left = rows - control.rows_above;
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint64_t rank = candidates.Rank(i);
    if (KeyOf(rank) < bins.low) continue;  // the other block's, which the cut-down of this one's has passed
    const uint32_t own_bin = bins.Of(KeyOf(rank));
    if (own_bin > bin) mark(rank);
    if (own_bin == bin) {
      const uint32_t slot = atomicAdd(&control.num_contested, 1u);
      if (slot < kContested) control.contested[slot] = rank;
    }
  }
  __syncthreads();
  const uint32_t contested = control.num_contested;
  if (contested <= kContested) {
    for (uint32_t i = threadIdx.x; i < contested; i += blockDim.x) {
      const uint64_t rank = control.contested[i];
      uint32_t above = 0;
#pragma unroll 4
      for (uint32_t other = 0; other < contested; ++other) above += control.contested[other] > rank;
      if (above < left) mark(rank);
    }
  } else {
    __syncthreads();  // all have read how many are contested
    const CutRule rule{.rows = rows, .mass = 0, .by_mass = false, .unit_rows = 1, .first_row = 0, .last_row = 0};
    const uint64_t cut = CutOf(candidates, count, rule, Importance<ImportanceKind::kValues>{}, top_k);
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
      if (candidates.Rank(i) >= cut) mark(candidates.Rank(i));
    }
  }
  __syncthreads();
}

// Writes the marked columns of [0, last), ascending. All threads, behind a barrier. Returns their number.
__device__ __forceinline__ uint32_t WriteMarked(const uint32_t* bitmap, uint32_t last, uint32_t* warp_sums,
                                                uint32_t* selected) {
  const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const uint32_t words = (last + 31) / 32, warp_words = (words + 32 * warps - 1) / (32 * warps) * 32;
  const uint32_t begin = min(warp * warp_words, words), end = min(begin + warp_words, words);
  uint32_t count = 0;
  for (uint32_t word = begin + lane; word < end; word += 32) count += __popc(bitmap[word]);
  count = __reduce_add_sync(~0u, count);
  if (lane == 0) warp_sums[warp] = count;
  __syncthreads();
  const uint32_t of_warp = lane < warps ? warp_sums[lane] : 0;
  uint32_t place = __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
  for (uint32_t base = begin; base < end; base += 32) {
    uint32_t bits = base + lane < end ? bitmap[base + lane] : 0, through = __popc(bits);
    const uint32_t own = through;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, through, step);
      if (lane >= step) through += before;
    }
    uint32_t* to = selected + place + through - own;
    for (; bits != 0; bits &= bits - 1) *to++ = (base + lane) * 32 + __ffs(static_cast<int>(bits)) - 1;
    place += __shfl_sync(~0u, through, 31);
  }
  return __reduce_add_sync(~0u, of_warp);
}

// Sends a block's candidates to the leader. All threads, behind a barrier.
__device__ __forceinline__ void SendCandidates(const ValueTopKMemory& memory, uint32_t count) {
  ValueTopKControl& control = memory.control;
  const uint32_t sent = (count + 1) / 2 * 2;  // a multiple of 16 bytes
  if (threadIdx.x == 0 && sent > count) memory.ranks[count] = 0;
  FenceSharedForCluster();
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint64_t* const barrier = OfRank(&control.received, 0);
  *OfRank(&control.num_received, 0) = count;
  ArriveInClusterExpecting(barrier, sent * static_cast<uint32_t>(sizeof(uint64_t)));
  if (sent > 0) {
    CopyInCluster(OfRank(memory.received, 0), memory.ranks, sent * static_cast<uint32_t>(sizeof(uint64_t)), barrier);
  }
}

// The top-k of given values: `shape.blocks` blocks to a list.
__global__ void __launch_bounds__(kMaxSelectThreads)
    ValueTopKKernel(const float* values, int64_t stride, const SelectionList* lists, uint32_t max_budget,
                    const __grid_constant__ ValueTopKShape shape, uint32_t* selected, uint32_t* counts) {
  if (!kHasClusters) return;
  extern __shared__ __align__(128) uint8_t dynamic[];
  const ValueTopKMemory memory(dynamic, shape);
  ValueTopKControl& control = memory.control;
  const uint32_t blocks = shape.blocks, rank = blocks > 1 ? ClusterRank() : 0, index = blockIdx.x / blocks;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane < shape.stages) InitClusterBarrier(&control.barriers[warp][lane]);
  if (threadIdx.x == 0) InitClusterBarrier(&control.received);
  ClearFours(memory.bins, kBins);
  __syncwarp();
  if (blocks > 1) ClusterArrive();
  WaitForInputs();
  LetDependentsStart();
  const SelectionList list = lists[index];
  const uint32_t n = list.last > list.first ? list.last - list.first : 0, rows = list.budget;
  selected += static_cast<int64_t>(index) * max_budget;
  if (n <= rows || rows == 0) {
    const uint32_t count = min(n, rows);
    for (uint32_t i = rank * blockDim.x + threadIdx.x; i < count; i += blocks * blockDim.x)
      selected[i] = list.first + i;
    if (threadIdx.x == 0 && rank == 0) counts[index] = count;
    if (blocks > 1) ClusterWait();
    return;
  }

  const float* const from = values + stride * index + list.first;
  const ListParts parts(from, n, rank, blocks);
  ChunkStream chunks(parts.body, parts.body_fours, memory.rings, control.barriers[warp], shape.stages);
  PivotBins bins{OrderedKey(-INFINITY), BinShift(0, ~0u)};
  __syncthreads();  // bins are empty
  if (n > shape.capacity) {
    bins = SampledPivot(parts.aligned, n, rows, memory.TopK(), [&] { chunks.Begin(); });
  } else {
    chunks.Begin();
  }
  RankedColumns candidates{memory.ranks, memory.received, 0};
  uint32_t count = 0;
  for (uint32_t run = 0;; ++run) {
    if (threadIdx.x == 0) control.top_k.num_candidates = 0;
    __syncthreads();
    uint64_t cut = 0;
    bool edges_wait = warp == 0;
    while (true) {
      const float pivot = FromOrderedKey(bins.low);
      // Behind the column of a cut what is equal to it loses.
      const float above = FromOrderedKey(bins.low + 1);
      if (edges_wait) {
        const uint32_t i = parts.Edge(lane);
        const float value = i != ~0u ? from[i] : 0;
        edges_wait = !Collect(
            memory, shape.capacity, bins, i != ~0u && value >= pivot ? 1 : 0, [&](uint32_t) { return value; },
            [&](uint32_t) { return list.first + i; });
      }
      while (!edges_wait && chunks.HasMore()) {
        const float* const chunk = chunks.Await();
        const uint32_t first = list.first + parts.body_first + chunks.First();
        const float least = cut != 0 && first > ColumnOf(cut) ? above : pivot;
        uint32_t kept = 0;
#pragma unroll
        for (int f = 0; f < kChunkFours; ++f) {
          const float4 four = reinterpret_cast<const float4*>(chunk)[f * 32 + lane];
          kept |= four.x >= least ? 1u << 4 * f : 0;
          kept |= four.y >= least ? 2u << 4 * f : 0;
          kept |= four.z >= least ? 4u << 4 * f : 0;
          kept |= four.w >= least ? 8u << 4 * f : 0;
        }
        kept &= chunks.Meant();
        const bool fits = Collect(
            memory, shape.capacity, bins, kept, [&](uint32_t i) { return chunk[lane * 4 + i + i / 4 * 124]; },
            [&](uint32_t i) { return first + lane * 4 + (i + i / 4 * 124); });
        if (!fits) break;
        chunks.Advance();
      }
      __syncthreads();
      count = control.top_k.num_candidates;
      if (count <= shape.capacity) break;
      cut = CutDown(memory, rows, &bins);
      __syncthreads();
    }
    candidates.num_own = count;
    if (blocks > 1) {
      if (run == 0) ClusterWait();  // both blocks run
      if (rank > 0) {
        SendCandidates(memory, count);
        ClusterArrive();
        ClusterWait();
        if (control.again == 0) return;
      } else {
        WaitInCluster(&control.received, run % 2);
        const uint32_t received = control.num_received;
        for (uint32_t i = threadIdx.x; i < received; i += blockDim.x) {
          const uint32_t key = KeyOf(memory.received[i]);
          if (key >= bins.low) atomicAdd(&memory.bins[bins.Of(key)], 1u);
        }
        count += received;
        if (threadIdx.x == 0) *OfRank(&control.again, 1) = count < rows ? 1 : 0;
        ClusterArrive();
        if (count < rows) ClusterWait();
        __syncthreads();
      }
    }
    if (count >= rows && rank == 0) break;
    bins = {OrderedKey(-INFINITY), BinShift(0, ~0u)};
    ClearFours(memory.bins, kBins);
    chunks.Begin();
  }
  MarkBest(memory, candidates, count, rows, list.last, bins);
  WriteMarked(memory.bitmap, list.last, control.top_k.warp_rows, selected);
  if (threadIdx.x == 0) counts[index] = rows;
  if (blocks > 1) ClusterWait();
}

}  // namespace winnow::device
