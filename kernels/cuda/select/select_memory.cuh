#pragma once
#include <cstdint>

#include "kernels/cuda/select/cluster_top_k.cuh"
#include "kernels/cuda/select/score_list.cuh"
#include "kernels/device/params/selection.h"

namespace winnow::device {

// A selection, and where scores lie. Lists lie one after the other.
struct SelectLaunch {
  SelectParams params;
  uint32_t capacity;  // TopKMemory
  uint32_t bitmap_words;
  const float* key_scores;   // [group, key_stride] a list
  const float* page_scores;  // [group, page_stride]
  const SoftmaxPart* parts;  // [max_runs, 8]; null where no softmax is wanted
  uint32_t* granules;        // [max_granules]; null: every key is scored
  uint32_t* granule_counts;
  const float* group_scores;  // [group, group_stride]
  uint32_t* kept_groups;      // [group_stride]; null: no groups are left out
  uint32_t* group_counts;
  int64_t key_stride, page_stride, group_stride;
  uint32_t max_runs, max_granules;

  __device__ ScoredGranules Granules() const { return {granules, granule_counts, max_granules}; }
  __device__ ScoredGranules KeptGroups() const { return {kept_groups, group_counts, group_stride}; }
};

struct SelectControl {
  TopKControl top_k;
  float lse[kMaxGroup];
  SoftmaxPart warp_parts[kSumThreads / 32][kMaxGroup];
  double warp_masses[kSumThreads / 32];
};

inline constexpr size_t AlignedTo16(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

// Parts of a block's dynamic shared memory.
struct SelectMemory {
  SelectControl* control;
  TopKMemory top_k;

  static size_t Bytes(uint32_t capacity, uint32_t bitmap_words, bool by_mass) {
    return AlignedTo16(sizeof(SelectControl)) + 2 * capacity * sizeof(uint32_t) + kBins * sizeof(uint32_t) +
           (by_mass ? kBins * sizeof(uint64_t) : 0) + AlignedTo16(bitmap_words * sizeof(uint32_t));
  }
  __device__ __forceinline__ static SelectMemory Of(uint8_t* base, uint32_t capacity, bool by_mass) {
    SelectMemory memory;
    memory.control = reinterpret_cast<SelectControl*>(base);
    memory.top_k.control = &memory.control->top_k;
    memory.top_k.capacity = capacity;
    memory.top_k.keys = reinterpret_cast<uint32_t*>(base + AlignedTo16(sizeof(SelectControl)));
    memory.top_k.columns = memory.top_k.keys + capacity;
    memory.top_k.bins = memory.top_k.columns + capacity;
    memory.top_k.mass_bins = reinterpret_cast<uint64_t*>(memory.top_k.bins + kBins);
    memory.top_k.bitmap = memory.top_k.bins + (by_mass ? 3 * kBins : kBins);
    return memory;
  }
};

// log2 of the softmax sums over all runs, in one order, to control.lse; ends with a barrier.
__device__ __forceinline__ void SumSoftmaxes(const SoftmaxPart* parts, uint32_t runs, SelectControl& control) {
  const uint32_t query = threadIdx.x % kMaxGroup;
  if (threadIdx.x < kSumThreads) {
    SoftmaxPart part = {-INFINITY, 0};
#pragma unroll 4
    for (uint32_t run = threadIdx.x / kMaxGroup; run < runs; run += kSumThreads / kMaxGroup) {
      part = Joined(part, parts[run * kMaxGroup + query]);
    }
#pragma unroll
    for (int step = kMaxGroup; step < 32; step *= 2) {
      const SoftmaxPart other = {__shfl_down_sync(~0u, part.largest, step), __shfl_down_sync(~0u, part.sum, step)};
      part = Joined(part, other);
    }
    if (threadIdx.x % 32 < kMaxGroup) control.warp_parts[threadIdx.x / 32][query] = part;
  }
  __syncthreads();
  // Sixteen lanes to a query.
  constexpr uint32_t kWarps = kSumThreads / 32;
  static_assert(kWarps == 16);
  if (threadIdx.x < kWarps * kMaxGroup) {
    SoftmaxPart part = control.warp_parts[threadIdx.x % kWarps][threadIdx.x / kWarps];
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
      const SoftmaxPart other = {__shfl_down_sync(~0u, part.largest, step, 16),
                                 __shfl_down_sync(~0u, part.sum, step, 16)};
      part = Joined(part, other);
    }
    if (threadIdx.x % kWarps == 0) {
      control.lse[threadIdx.x / kWarps] = part.largest == -INFINITY ? INFINITY : part.largest + log2f(part.sum);
    }
  }
  __syncthreads();
}

// The sum of value(i) for i in [begin, end), in a fixed order; all threads get it.
template <typename Value>
__device__ __forceinline__ double BlockSum(uint32_t begin, uint32_t end, double* warp_sums, Value value) {
  double sum = 0;
  if (threadIdx.x < kSumThreads) {
    for (uint32_t i = begin + threadIdx.x; i < end; i += kSumThreads) sum += value(i);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  }
  __syncthreads();
  if (threadIdx.x < kSumThreads && threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (uint32_t warp = 0; warp < kSumThreads / 32; ++warp) sum += warp_sums[warp];
  return sum;
}

// Calls visit(column, sum of rows_of over the marked columns before it) for the marked columns of [0, last). Returns
// the sum over all. The leader's threads; a barrier behind it.
template <typename RowsOf, typename Visit>
__device__ __forceinline__ uint32_t VisitMarked(const uint32_t* bitmap, uint32_t last, uint32_t* warp_sums,
                                                RowsOf rows_of, Visit visit) {
  const uint32_t words = (last + 31) / 32, per_thread = (words + blockDim.x - 1) / blockDim.x;
  const uint32_t begin = min(threadIdx.x * per_thread, words), end = min(begin + per_thread, words);
  uint32_t rows = 0;
  for (uint32_t word = begin; word < end; ++word) {
    for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1) rows += rows_of(word * 32 + __ffs(bits) - 1);
  }
  SumsOfThreads sums = SumBefore(rows, warp_sums);
  for (uint32_t word = begin; word < end; ++word) {
    for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1) {
      const uint32_t column = word * 32 + __ffs(bits) - 1;
      visit(column, sums.before);
      sums.before += rows_of(column);
    }
  }
  __syncthreads();
  return sums.all;
}

// The same where every column counts 1.
template <typename Visit>
__device__ __forceinline__ uint32_t VisitMarked(const uint32_t* bitmap, uint32_t last, uint32_t* warp_sums,
                                                Visit visit) {
  const uint32_t words = (last + 31) / 32, per_thread = (words + blockDim.x - 1) / blockDim.x;
  const uint32_t begin = min(threadIdx.x * per_thread, words), end = min(begin + per_thread, words);
  uint32_t count = 0;
  for (uint32_t word = begin; word < end; ++word) count += __popc(bitmap[word]);
  SumsOfThreads sums = SumBefore(count, warp_sums);
  for (uint32_t word = begin; word < end; ++word) {
    for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1) {
      visit(word * 32 + __ffs(bits) - 1, sums.before++);
    }
  }
  __syncthreads();
  return sums.all;
}

}  // namespace winnow::device
