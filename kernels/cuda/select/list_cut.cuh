#pragma once
#include <cstdint>

#include "kernels/cuda/select/value_bins.cuh"

// The cut of pages whose keys one block holds.

namespace winnow::device {

// The least rank chosen, 0 where all are: of `count` columns that were counted in memory.bins, in rows of `rule`. All
// threads of a block, behind a barrier; ends with one. Chooses by rows alone.
template <typename Candidates>
__device__ __forceinline__ uint64_t CutOfCounted(const Candidates& candidates, uint32_t count,
                                                 const ValueBins<kBins>& bins, const CutRule& rule,
                                                 const TopKMemory& memory) {
  TopKControl& control = *memory.control;
  if (threadIdx.x == 0) control.num_contested = 0;
  FindTopBin(memory, rule.rows);
  const uint32_t bin = control.bin, wanted = rule.rows - control.rows_above;
  if (bin == ~0u) return 0;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint32_t key = candidates.Key(i);
    if (bins.Of(key) != bin) continue;
    const uint32_t place = atomicAdd(&control.num_contested, 1u);
    if (place < kContested) control.contested[place] = RankOf(key, candidates.Column(i));
  }
  __syncthreads();
  const uint32_t contested = control.num_contested;
  if (contested > kContested) {
    __syncthreads();
    const uint64_t cut = CutOf(candidates, count, rule, Importance<ImportanceKind::kValues>{}, memory);
    __syncthreads();
    return cut;
  }
  for (uint32_t at = threadIdx.x; at < contested; at += blockDim.x) {
    const uint64_t rank = control.contested[at];
    uint32_t rows_above = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < contested; ++i) {
      const uint64_t other = control.contested[i];
      if (other > rank) rows_above += rule.RowsOf(ColumnOf(other));
    }
    if (rows_above < wanted && rows_above + rule.RowsOf(ColumnOf(rank)) >= wanted) control.cut = rank;
  }
  __syncthreads();
  return control.cut;
}

// Calls visit(column, number of marked columns before it) for the marked columns of [0, last), neighbours at once.
// `before` has a word for each of the bitmap's. Returns the number of all. All threads of a block, behind a barrier.
template <typename Visit>
__device__ __forceinline__ uint32_t VisitInOrder(const uint32_t* bitmap, uint32_t last, uint32_t* before,
                                                 uint32_t* sums, Visit visit) {
  const uint32_t words = (last + 31) / 32, per_thread = (words + blockDim.x - 1) / blockDim.x;
  const uint32_t begin = min(threadIdx.x * per_thread, words), end = min(begin + per_thread, words);
  uint32_t count = 0;
  for (uint32_t word = begin; word < end; ++word) count += __popc(bitmap[word]);
  const SumsOfThreads all = SumBefore(count, sums);
  count = all.before;
  for (uint32_t word = begin; word < end; ++word) {
    before[word] = count;
    count += __popc(bitmap[word]);
  }
  __syncthreads();
  const uint32_t bit = 1u << threadIdx.x % 32;
#pragma unroll 4
  for (uint32_t word = threadIdx.x / 32; word < words; word += blockDim.x / 32) {
    const uint32_t bits = bitmap[word];
    if ((bits & bit) != 0) visit(word * 32 + threadIdx.x % 32, before[word] + __popc(bits & (bit - 1)));
  }
  return all.all;
}

}  // namespace winnow::device
