#pragma once
#include <cstdint>

#include "kernels/cuda/cluster_top_k.cuh"
#include "kernels/cuda/score_list.cuh"
#include "kernels/cuda/selection.h"

// From scores to selections: one cluster to a list narrows its columns down to candidates, of which the leader takes
// the best.

namespace winnow::cuda {

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
  int64_t key_stride, page_stride;
  uint32_t max_runs, max_granules;

  __device__ ScoredGranules Granules() const { return {granules, granule_counts, max_granules}; }
};

struct SelectControl {
  TopKControl top_k;
  float lse[kMaxGroup];
  SoftmaxPart warp_parts[kSelectWarps][kMaxGroup];
  double warp_masses[kSelectWarps];
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
  SoftmaxPart part = {-INFINITY, 0};
#pragma unroll 4
  for (uint32_t run = threadIdx.x / kMaxGroup; run < runs; run += kSelectThreads / kMaxGroup) {
    part = Joined(part, parts[run * kMaxGroup + query]);
  }
#pragma unroll
  for (int step = kMaxGroup; step < 32; step *= 2) {
    const SoftmaxPart other = {__shfl_down_sync(~0u, part.largest, step), __shfl_down_sync(~0u, part.sum, step)};
    part = Joined(part, other);
  }
  if (threadIdx.x % 32 < kMaxGroup) control.warp_parts[threadIdx.x / 32][query] = part;
  __syncthreads();
  if (threadIdx.x < kMaxGroup) {
    part = control.warp_parts[0][query];
    for (int warp = 1; warp < kSelectWarps; ++warp) part = Joined(part, control.warp_parts[warp][query]);
    control.lse[query] = part.largest == -INFINITY ? INFINITY : part.largest + log2f(part.sum);
  }
  __syncthreads();
}

// The sum over all threads, in a fixed order; all threads get it.
__device__ __forceinline__ double BlockSum(double value, double* warp_sums) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kSelectWarps; ++w) sum += warp_sums[w];
  return sum;
}

// Calls visit(column, sum of rows_of over the marked columns before it) for the marked columns of [0, last). Returns
// the sum over all. The leader's threads; a barrier behind it.
template <typename RowsOf, typename Visit>
__device__ __forceinline__ uint32_t VisitMarked(const uint32_t* bitmap, uint32_t last, uint32_t* warp_sums,
                                                RowsOf rows_of, Visit visit) {
  const uint32_t words = (last + 31) / 32, per_thread = (words + kSelectThreads - 1) / kSelectThreads;
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
  const uint32_t words = (last + 31) / 32, per_thread = (words + kSelectThreads - 1) / kSelectThreads;
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

// Share of the softmax that sinks, selection and recent window hold, averaged over the queries: exact where every key
// was scored, otherwise at least this, what is not scored taken as its pages' bounds. The leader's threads.
__device__ __noinline__ float CapturedMass(const SelectLaunch& launch, const SelectionList& list,
                                           const ListColumns& scored, const float* key_scores, const float* page_scores,
                                           const SelectMemory& memory) {
  SelectControl& control = *memory.control;
  uint32_t* bitmap = memory.top_k.bitmap;
  const int group = launch.params.group;
  double masses[kMaxGroup] = {}, totals[kMaxGroup] = {};
  const auto share = [&](int q, uint32_t column) {
    return Exp2(fmaf(key_scores[q * launch.key_stride + column], kLog2E, -control.lse[q]));
  };
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) {
    if (q >= group) break;
    double mass = 0, tail = 0;
    const uint32_t words = (scored.last + 31) / 32;
    for (uint32_t word = threadIdx.x; word < words; word += kSelectThreads) {
      for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1) mass += share(q, word * 32 + __ffs(bits) - 1);
    }
    for (uint32_t c = threadIdx.x; c < min(scored.first, scored.summed); c += kSelectThreads) mass += share(q, c);
    for (uint32_t c = scored.last + threadIdx.x; c < scored.summed; c += kSelectThreads) mass += share(q, c);
    for (uint32_t c = scored.summed + threadIdx.x; c < scored.scored; c += kSelectThreads) tail += share(q, c);
    mass = BlockSum(mass + tail, control.warp_masses);
    masses[q] = mass;
    if (scored.granules != nullptr) totals[q] = 1 + BlockSum(tail, control.warp_masses);
  }
  if (scored.granules != nullptr) {
    const uint32_t page_rows = launch.params.pages.page_tokens, num_pages = list.last / page_rows;
    const uint32_t num_granules = (scored.scored + kGranule - 1) / kGranule;
    __syncthreads();
    for (uint32_t word = threadIdx.x; word < (list.num_keys / kGranule + 32) / 32; word += kSelectThreads) {
      bitmap[word] = 0;
    }
    __syncthreads();
    for (uint32_t g = threadIdx.x; g < num_granules; g += kSelectThreads) {
      atomicOr(&bitmap[scored.granules[g] / 32], 1u << scored.granules[g] % 32);
    }
    __syncthreads();
    const auto is_scored = [&](uint32_t row) { return bitmap[row / kGranule / 32] >> row / kGranule % 32 & 1; };
#pragma unroll
    for (int q = 0; q < kMaxGroup; ++q) {
      if (q >= group) break;
      double unscored = 0;
      for (uint32_t page = threadIdx.x; page < num_pages; page += kSelectThreads) {
        uint32_t rows = page_rows;
        for (uint32_t row = page * page_rows; row < (page + 1) * page_rows; row += min(page_rows, kGranule)) {
          rows -= is_scored(row) ? min(page_rows, kGranule) : 0;
        }
        if (rows == 0) continue;
        const float bound = page_scores[q * launch.page_stride + page];
        unscored += rows * double{Exp2(fmaf(bound, kLog2E, -control.lse[q]))};
      }
      totals[q] += BlockSum(unscored, control.warp_masses);
    }
  }
  double mean = 0;
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) {
    if (q >= group) break;
    const double mass = scored.granules == nullptr ? masses[q] : masses[q] / totals[q];
    // As on CPUs: an exact mass that is not a number says so, a bound counts as 0.
    mean += mass != mass && scored.granules != nullptr ? 0 : mass;
  }
  mean /= group;
  return mean > 1 ? 1.0f : static_cast<float>(mean);
}

// Narrows each list's pages down to those of the greatest bound that hold candidate_pages * page_tokens rows, and lists
// the granules that are scored: theirs, the sinks', and all from the last page boundary below the recent window on.
__global__ void __launch_bounds__(kSelectThreads, 1024 / kSelectThreads)
    CandidatesKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  LetDependentsLaunch();
  const SelectParams& params = launch.params;
  const SelectMemory memory = SelectMemory::Of(dynamic, launch.capacity, false);
  const uint32_t index = blockIdx.x / ClusterBlocks();
  const SelectionList list = params.lists[index];
  const uint32_t page_rows = params.pages.page_tokens, selectable = list.last > list.first ? list.last - list.first : 0;
  uint32_t* granules = launch.granules + static_cast<int64_t>(launch.max_granules) * index;
  WaitForPrerequisites();
  if (selectable <= params.candidate_pages * page_rows || selectable < params.score_all_below) {
    if (threadIdx.x == 0 && ClusterRank() == 0) launch.granule_counts[index] = ~0u;
    return;
  }
  const Importance<ImportanceKind::kMax> importance{
      .scores = launch.page_scores + launch.page_stride * params.group * index,
      .stride = launch.page_stride,
      .lse = nullptr,
      .scored_end = list.last / page_rows,
      .group = params.group,
      .aligned = true};
  const uint32_t first_page = list.first / page_rows, last_page = (list.last + page_rows - 1) / page_rows;
  const CutRule rule{.rows = params.candidate_pages * page_rows,
                     .mass = 0,
                     .by_mass = false,
                     .unit_rows = page_rows,
                     .first_row = list.first,
                     .last_row = list.last};
  MarkTopK(importance, first_page, last_page, params.candidate_pages + 3, rule, memory.top_k);
  if (ClusterRank() != 0) return;
  const uint32_t* bitmap = memory.top_k.bitmap;
  uint32_t* wanted = memory.top_k.bins;  // bits of granules: up to 32 * kBins
  const uint32_t last_granule = (list.num_keys + kGranule - 1) / kGranule;
  const uint32_t words = (last_granule + 31) / 32;
  for (uint32_t word = threadIdx.x; word < words; word += kSelectThreads) wanted[word] = 0;
  __syncthreads();
  const auto want = [&](uint32_t granule) { atomicOr(&wanted[granule / 32], 1u << granule % 32); };
  for (uint32_t page = first_page + threadIdx.x; page < last_page; page += kSelectThreads) {
    if ((bitmap[page / 32] >> page % 32 & 1) == 0) continue;
    const uint32_t end = min((page + 1) * page_rows, list.last);
    for (uint32_t g = max(page * page_rows, list.first) / kGranule; g <= (end - 1) / kGranule; ++g) want(g);
  }
  for (uint32_t g = threadIdx.x; g * kGranule < min(list.first, list.num_keys); g += kSelectThreads) want(g);
  const uint32_t window = list.last / page_rows * page_rows / kGranule;
  for (uint32_t g = window + threadIdx.x; g < last_granule; g += kSelectThreads) want(g);
  __syncthreads();
  const uint32_t count = VisitMarked(wanted, last_granule, memory.top_k.control->warp_rows,
                                     [&](uint32_t granule, uint32_t place) { granules[place] = granule; });
  if (threadIdx.x == 0) launch.granule_counts[index] = count;
}

// Takes the best of the scored columns: selected positions, their count, and the captured mass.
template <ImportanceKind kKind>
__global__ void __launch_bounds__(kSelectThreads, 1024 / kSelectThreads)
    SelectKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  LetDependentsLaunch();
  const SelectParams& params = launch.params;
  const bool leads = ClusterRank() == 0;
  const SelectMemory memory = SelectMemory::Of(dynamic, launch.capacity, params.min_mass > 0);
  SelectControl& control = *memory.control;
  const uint32_t index = blockIdx.x / ClusterBlocks();
  const SelectionList list = params.lists[index];
  const bool takes_all = params.takes_all_that_fit && list.last - list.first <= list.budget;
  const bool by_mass = params.min_mass > 0 && !takes_all;
  WaitForPrerequisites();
  const ListColumns scored = ListColumns::Of(list, index, launch.Granules());
  const float* key_scores = launch.key_scores + launch.key_stride * params.group * index;
  if (launch.parts != nullptr) {
    SumSoftmaxes(launch.parts + static_cast<int64_t>(launch.max_runs) * kMaxGroup * index,
                 (scored.scored + kKeyRun - 1) / kKeyRun, control);
  }
  const Importance<kKind> importance{.scores = key_scores,
                                     .stride = launch.key_stride,
                                     .lse = control.lse,
                                     .scored_end = ~0u,
                                     .group = params.group,
                                     .aligned = true};
  CutRule rule{.rows = list.budget, .mass = 0, .by_mass = by_mass, .unit_rows = 1, .first_row = 0, .last_row = 0};
  bool none = false;
  if (by_mass && leads) {
    double held = 0;
    for (uint32_t c = threadIdx.x; c < min(scored.first, scored.summed); c += kSelectThreads) {
      held += SoftmaxSumOf(importance, c);
    }
    for (uint32_t c = scored.last + threadIdx.x; c < scored.summed; c += kSelectThreads) {
      held += SoftmaxSumOf(importance, c);
    }
    const double missing = double{params.min_mass} * params.group - BlockSum(held, control.warp_masses);
    none = !(missing > 0);
    rule.mass = none ? 1 : max(1ull, __double2ull_ru(missing * double{kMassUnit}));
  }
  MarkTopK(importance, scored.first, scored.last, list.budget, rule, memory.top_k);
  if (!leads) return;
  if (none) {
    for (uint32_t word = threadIdx.x; word < (scored.last + 31) / 32; word += kSelectThreads) {
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
  const float mass = CapturedMass(launch, list, scored, key_scores,
                                  launch.page_scores + launch.page_stride * params.group * index, memory);
  if (threadIdx.x == 0) params.captured_mass[index] = mass;
}

// Takes the pages of the greatest importance, the fewest that hold the budget; the least of them gives its first rows.
template <ImportanceKind kKind>
__global__ void __launch_bounds__(kSelectThreads, 1024 / kSelectThreads)
    SelectPagesKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  LetDependentsLaunch();
  const SelectParams& params = launch.params;
  const SelectMemory memory = SelectMemory::Of(dynamic, launch.capacity, false);
  const uint32_t index = blockIdx.x / ClusterBlocks(), page_rows = params.pages.page_tokens;
  const SelectionList list = params.lists[index];
  WaitForPrerequisites();
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

}  // namespace winnow::cuda
