#pragma once
#include <cstdint>

#include "kernels/cuda/select/list_cut.cuh"
#include "kernels/cuda/select/list_memory.cuh"
#include "kernels/cuda/select/page_groups.cuh"
#include "kernels/cuda/select/value_bins.cuh"

// Groups of pages, by which long lists are narrowed down before their pages are looked at.

namespace winnow::device {

// The groups that stay, ascending, to memory.groups, from the greatest bounds of all in `keys`, of which `least` and
// `greatest` are the ends. All threads of a block, behind a barrier and with bins that are cleared; ends with one.
__device__ __forceinline__ void ListKeptGroups(const SelectionList& list, const PageGroups& groups,
                                               const uint32_t* keys, uint32_t least, uint32_t greatest,
                                               const ListMemory& memory) {
  uint32_t* const bins = memory.top_k.bins;
  const auto value_bins = ValueBins<kBins>::Between(least, greatest);
#pragma unroll 4
  for (uint32_t group = groups.begin + threadIdx.x; group < groups.end; group += kListThreads) {
    atomicAdd(&bins[value_bins.Of(keys[group])], 1u);
  }
  __syncthreads();
  const CutRule rule{.rows = groups.kept, .mass = 0, .by_mass = false, .unit_rows = 1, .first_row = 0, .last_row = 0};
  const uint64_t cut = CutOfCounted(ColumnsInOrder{keys + groups.begin, groups.begin}, groups.end - groups.begin,
                                    value_bins, rule, memory.top_k);
  uint32_t* const wanted = bins;
  const uint32_t end = (list.num_keys + groups.rows - 1) / groups.rows, words = (end + 31) / 32;
#pragma unroll 4
  for (uint32_t word = threadIdx.x / 32; word < words; word += kListWarps) {
    const uint32_t group = word * 32 + threadIdx.x % 32;
    const bool may_go = group >= groups.begin && group < groups.end;
    const uint32_t bits = __ballot_sync(~0u, group < end && (!may_go || RankOf(keys[group], group) >= cut));
    if (threadIdx.x % 32 == 0) wanted[word] = bits;
  }
  __syncthreads();
  VisitInOrder(wanted, end, memory.before, memory.control.select.top_k.warp_rows,
               [&](uint32_t group, uint32_t place) { memory.groups[place] = group; });
  __syncthreads();
}

}  // namespace winnow::device
