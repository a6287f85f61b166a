#pragma once
#include <cstdint>

#include "kernels/cuda/select/captured_mass.cuh"
#include "kernels/cuda/select/scored_list.cuh"

// From scores to selections: one cluster to a list narrows its columns down to candidates, of which the leader takes
// the best.

namespace winnow::device {

// Lists the groups of each list's pages that stay.
__global__ void __launch_bounds__(kMaxSelectThreads) KeptGroupsKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  LetDependentsStart();
  const SelectParams& params = launch.params;
  const SelectMemory memory = SelectMemory::Of(dynamic, launch.capacity, false);
  const uint32_t index = blockIdx.x / ClusterBlocks();
  const SelectionList list = params.lists[index];
  WaitForInputs();
  const PageGroups groups = GroupsOf(params, list);
  if (!groups.leaves_out()) {
    if (threadIdx.x == 0 && ClusterRank() == 0) launch.group_counts[index] = ~0u;
    return;
  }
  const Importance<ImportanceKind::kMax> importance{
      .scores = launch.group_scores + launch.group_stride * params.group * index,
      .stride = launch.group_stride,
      .lse = nullptr,
      .scored_end = groups.end,
      .group = params.group,
      .aligned = true};
  const CutRule rule{.rows = groups.kept, .mass = 0, .by_mass = false, .unit_rows = 1, .first_row = 0, .last_row = 0};
  MarkTopK(importance, groups.begin, groups.end, groups.kept, rule, memory.top_k);
  if (ClusterRank() != 0) return;
  // Those that always stay.
  const uint32_t end = (list.num_keys + groups.rows - 1) / groups.rows;
  uint32_t* const bitmap = memory.top_k.bitmap;
  for (uint32_t word = (groups.end + 31) / 32 + threadIdx.x; word < (end + 31) / 32; word += blockDim.x) {
    bitmap[word] = 0;
  }
  __syncthreads();
  const auto keep = [&](uint32_t group) { atomicOr(&bitmap[group / 32], 1u << group % 32); };
  for (uint32_t group = threadIdx.x; group < groups.begin; group += blockDim.x) keep(group);
  for (uint32_t group = groups.end + threadIdx.x; group < end; group += blockDim.x) keep(group);
  __syncthreads();
  uint32_t* const kept = launch.kept_groups + launch.group_stride * index;
  const uint32_t count = VisitMarked(bitmap, end, memory.top_k.control->warp_rows,
                                     [&](uint32_t group, uint32_t place) { kept[place] = group; });
  if (threadIdx.x == 0) launch.group_counts[index] = count;
}

// Narrows each list's pages down to those of the greatest bound that hold CandidateRows, and lists the granules that
// are scored: theirs, the sinks', and all from the last page boundary below the recent window on.
__global__ void __launch_bounds__(kMaxSelectThreads) CandidatesKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  LetDependentsStart();
  const SelectParams& params = launch.params;
  const SelectMemory memory = SelectMemory::Of(dynamic, launch.capacity, false);
  const uint32_t index = blockIdx.x / ClusterBlocks();
  const SelectionList whole = params.lists[index];
  const uint32_t page_rows = params.pages.page_tokens,
                 selectable = whole.last > whole.first ? whole.last - whole.first : 0;
  uint32_t* granules = launch.granules + static_cast<int64_t>(launch.max_granules) * index;
  WaitForInputs();
  const uint32_t candidates = CandidateRows(params, whole.budget);
  if (selectable <= candidates || selectable < params.score_all_below) {
    if (threadIdx.x == 0 && ClusterRank() == 0) launch.granule_counts[index] = ~0u;
    return;
  }
  const uint32_t* const kept = launch.KeptGroups().KeptOf(index);
  const SelectionList list = kept == nullptr ? whole : Grouped(whole, GroupsOf(params, whole));
  const Importance<ImportanceKind::kMax> importance{
      .scores = launch.page_scores + launch.page_stride * params.group * index,
      .stride = launch.page_stride,
      .lse = nullptr,
      .scored_end = list.last / page_rows,
      .group = params.group,
      .aligned = true};
  const uint32_t first_page = list.first / page_rows, last_page = (list.last + page_rows - 1) / page_rows;
  const CutRule rule{.rows = candidates,
                     .mass = 0,
                     .by_mass = false,
                     .unit_rows = page_rows,
                     .first_row = list.first,
                     .last_row = list.last};
  MarkTopK(importance, first_page, last_page, candidates / page_rows + 4, rule, memory.top_k);
  if (ClusterRank() != 0) return;
  const uint32_t* bitmap = memory.top_k.bitmap;
  uint32_t* wanted = memory.top_k.bins;  // bits of granules: up to 32 * kBins
  const uint32_t last_granule = (list.num_keys + kGranule - 1) / kGranule;
  const uint32_t words = (last_granule + 31) / 32;
  for (uint32_t word = threadIdx.x; word < words; word += blockDim.x) wanted[word] = 0;
  __syncthreads();
  const auto want = [&](uint32_t granule) { atomicOr(&wanted[granule / 32], 1u << granule % 32); };
  for (uint32_t page = first_page + threadIdx.x; page < last_page; page += blockDim.x) {
    if ((bitmap[page / 32] >> page % 32 & 1) == 0) continue;
    const uint32_t end = min((page + 1) * page_rows, list.last);
    for (uint32_t g = max(page * page_rows, list.first) / kGranule; g <= (end - 1) / kGranule; ++g) want(g);
  }
  for (uint32_t g = threadIdx.x; g * kGranule < min(list.first, list.num_keys); g += blockDim.x) want(g);
  const uint32_t window = list.last / page_rows * page_rows / kGranule;
  for (uint32_t g = window + threadIdx.x; g < last_granule; g += blockDim.x) want(g);
  __syncthreads();
  const uint32_t count = VisitMarked(
      wanted, last_granule, memory.top_k.control->warp_rows,
      [&](uint32_t granule, uint32_t place) { granules[place] = UngroupedGranule(granule, kept, page_rows); });
  if (threadIdx.x == 0) launch.granule_counts[index] = count;
}

// Takes the best of the scored columns: selected positions, their count, and the captured mass.
template <ImportanceKind kKind>
__global__ void __launch_bounds__(kMaxSelectThreads) SelectKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  LetDependentsStart();
  const SelectParams& params = launch.params;
  const bool leads = ClusterRank() == 0;
  const SelectMemory memory = SelectMemory::Of(dynamic, launch.capacity, params.min_mass > 0);
  SelectControl& control = *memory.control;
  const uint32_t index = blockIdx.x / ClusterBlocks();
  const SelectionList list = params.lists[index];
  const bool takes_all = params.takes_all_that_fit && list.last - list.first <= list.budget;
  const bool by_mass = params.min_mass > 0 && !takes_all;
  WaitForInputs();
  const ScoredList<kKind> scored_list(launch, list, index, control);
  const ListColumns& scored = scored_list.columns;
  CutRule rule{.rows = list.budget, .mass = 0, .by_mass = by_mass, .unit_rows = 1, .first_row = 0, .last_row = 0};
  bool none = false;
  if (by_mass && leads) {
    rule.mass = scored_list.MissingMass(params.min_mass, control);
    none = rule.mass == 0;
    if (none) rule.mass = 1;
  }
  MarkTopK(scored_list.importance, scored.first, scored.last, list.budget, rule, memory.top_k);
  if (!leads) return;
  if (none) {
    for (uint32_t word = threadIdx.x; word < (scored.last + 31) / 32; word += blockDim.x) {
      memory.top_k.bitmap[word] = 0;
    }
    __syncthreads();
  }
  uint32_t* selected = params.selected + static_cast<int64_t>(index) * params.max_budget;
  const uint32_t* granules = scored.granules;
  const uint32_t count =
      VisitMarked(memory.top_k.bitmap, scored.last, control.top_k.warp_rows, [&](uint32_t column, uint32_t place) {
        selected[place] = granules == nullptr ? column : granules[column / kGranule] * kGranule + column % kGranule;
      });
  if (threadIdx.x == 0) params.counts[index] = count;
  if (params.captured_mass == nullptr) return;
  const float mass = CapturedMass(launch, list, scored, scored_list.key_scores,
                                  launch.page_scores + launch.page_stride * params.group * index, memory);
  if (threadIdx.x == 0) params.captured_mass[index] = mass;
}

// Takes the pages of the greatest importance, the fewest that hold the budget; the least of them gives its first rows.
template <ImportanceKind kKind>
__global__ void __launch_bounds__(kMaxSelectThreads) SelectPagesKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  LetDependentsStart();
  const SelectParams& params = launch.params;
  const SelectMemory memory = SelectMemory::Of(dynamic, launch.capacity, false);
  const uint32_t index = blockIdx.x / ClusterBlocks(), page_rows = params.pages.page_tokens;
  const SelectionList list = params.lists[index];
  WaitForInputs();
  if (launch.parts != nullptr) {
    SumSoftmaxes(launch.parts + static_cast<int64_t>(launch.max_runs) * kMaxGroup * index,
                 (list.num_keys / page_rows + kPageRun - 1) / kPageRun, *memory.control);
  }
  const Importance<kKind> importance{.scores = launch.page_scores + launch.page_stride * params.group * index,
                                     .stride = launch.page_stride,
                                     .lse = memory.control->lse,
                                     .scored_end = list.last / page_rows,
                                     .group = params.group,
                                     .aligned = true};
  const CutRule rule{.rows = list.budget,
                     .mass = 0,
                     .by_mass = false,
                     .unit_rows = page_rows,
                     .first_row = list.first,
                     .last_row = list.last};
  const uint32_t last_page = list.last > list.first ? (list.last + page_rows - 1) / page_rows : 0;
  const uint32_t most = list.budget == 0 ? 0 : list.budget / page_rows + 3;
  const uint64_t cut = MarkTopK(importance, list.first / page_rows, last_page, most, rule, memory.top_k);
  if (ClusterRank() != 0) return;
  uint32_t* selected = params.selected + static_cast<int64_t>(index) * params.max_budget;
  uint32_t* sums = memory.control->top_k.warp_rows;
  const uint32_t rows = VisitMarked(
      memory.top_k.bitmap, last_page, sums, [&](uint32_t page) { return rule.RowsOf(page); },
      [](uint32_t, uint32_t) {});
  const uint32_t excess = rows > list.budget ? rows - list.budget : 0, least = ColumnOf(cut);
  const auto rows_of = [&](uint32_t page) { return rule.RowsOf(page) - (page == least ? excess : 0); };
  VisitMarked(memory.top_k.bitmap, last_page, sums, rows_of, [&](uint32_t page, uint32_t place) {
    const uint32_t begin = max(page * page_rows, list.first), count = rows_of(page);
    for (uint32_t i = 0; i < count; ++i) selected[place + i] = begin + i;
  });
  if (threadIdx.x == 0) params.counts[index] = rows - excess;
}

}  // namespace winnow::device
