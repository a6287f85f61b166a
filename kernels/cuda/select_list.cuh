#pragma once
#include <cstdint>

#include "kernels/cuda/cluster_top_k.cuh"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/unit_scores.cuh"

// One cluster selects for one list, from its keys to the ascending positions: its blocks score their parts, exchange
// what the softmaxes need, and narrow the columns down to candidates, of which the leader takes the best.

namespace winnow::cuda {

// A selection, and where its lists keep what does not fit into shared memory. Lists lie one after the other.
struct SelectLaunch {
  SelectParams params;
  uint32_t capacity;   // TopKMemory
  float* key_scores;   // [group, key_stride] a list
  float* page_scores;  // [group, page_stride]
  SoftmaxPart* parts;  // [max_runs, 8]
  uint32_t* granules;  // [max_granules]
  int64_t key_stride, page_stride;
  uint32_t max_runs, max_granules;
  uint32_t bitmap_words;
  bool two_stage;
  bool pages_alone;
};

struct SelectControl {
  TopKControl top_k;
  float factors[kMaxGroup];
  float lse[kMaxGroup];
  uint32_t largest[kMaxGroup];  // ordered keys
  uint64_t sums[kMaxGroup];     // in 1 / kMassUnit
  uint32_t spoilt;              // bit q: the softmax of query q is not a number
  uint32_t num_granules;
  double warp_masses[kSelectWarps];
};

inline constexpr size_t AlignedTo16(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

// Parts of a block's dynamic shared memory.
struct SelectMemory {
  SelectControl* control;
  TopKMemory top_k;
  uint8_t* operand;

  __host__ __device__ static size_t Bytes(uint32_t capacity, uint32_t bitmap_words, bool by_mass,
                                          size_t operand_bytes) {
    return AlignedTo16(sizeof(SelectControl)) + capacity * sizeof(uint64_t) + kBins * sizeof(uint32_t) +
           (by_mass ? kBins * sizeof(uint64_t) : 0) + AlignedTo16(bitmap_words * sizeof(uint32_t)) + operand_bytes;
  }
  __device__ static SelectMemory Of(uint8_t* base, uint32_t capacity, uint32_t bitmap_words, bool by_mass) {
    SelectMemory memory;
    const auto take = [&base](size_t bytes) {
      uint8_t* part = base;
      base += AlignedTo16(bytes);
      return part;
    };
    memory.control = reinterpret_cast<SelectControl*>(take(sizeof(SelectControl)));
    memory.top_k.control = &memory.control->top_k;
    memory.top_k.capacity = capacity;
    memory.top_k.candidates = reinterpret_cast<uint64_t*>(take(capacity * sizeof(uint64_t)));
    memory.top_k.bins = reinterpret_cast<uint32_t*>(take(kBins * sizeof(uint32_t)));
    memory.top_k.mass_bins = by_mass ? reinterpret_cast<uint64_t*>(take(kBins * sizeof(uint64_t))) : nullptr;
    memory.top_k.bitmap = reinterpret_cast<uint32_t*>(take(bitmap_words * sizeof(uint32_t)));
    memory.operand = base;
    return memory;
  }
};

// The blocks' warps score columns [0, end), runs of kScoreRun to a warp. `queries`: the group's.
struct ColumnScores {
  const float* queries;
  int group;
  float scale;
  uint32_t end;
  float* scores;
  int64_t stride;
  SoftmaxPart* parts;  // may be null
  uint32_t part_end;
};
template <UnitFormat kFormat, int kDim, bool kPages>
__device__ __noinline__ void ScoreColumns(const UnitTable& table, const ColumnScores& c, uint8_t* operand,
                                          float* factors) {
  LoadQueries<kFormat, kDim, kPages>(c.queries, c.group, c.scale, operand, factors);
  __syncthreads();
  const uint32_t runs = (c.end + kScoreRun - 1) / kScoreRun, rank = ClusterRank(), blocks = ClusterBlocks();
  const uint32_t last = runs * (rank + 1) / blocks;
  for (uint32_t run = runs * rank / blocks + threadIdx.x / 32; run < last; run += kSelectWarps) {
    ScoreRun<kFormat, kDim>(table, run * kScoreRun, c.end, operand, factors, c.group, c.scores, c.stride,
                            c.parts == nullptr ? nullptr : c.parts + run * kMaxGroup, c.part_end);
  }
}

// One kernel for all shapes: what follows scoring is compiled once.
__device__ __forceinline__ void ScorePageColumns(int head_dim, const UnitTable& table, const ColumnScores& columns,
                                                 uint8_t* operand, float* factors) {
  constexpr UnitFormat kFormat = UnitFormat::kBf16;
  switch (head_dim) {
    case 64:
      return ScoreColumns<kFormat, 128, true>(table, columns, operand, factors);
    case 96:
      return ScoreColumns<kFormat, 192, true>(table, columns, operand, factors);
    case 128:
      return ScoreColumns<kFormat, 256, true>(table, columns, operand, factors);
    case 256:
      return ScoreColumns<kFormat, 512, true>(table, columns, operand, factors);
  }
}
template <UnitFormat kFormat>
__device__ __forceinline__ void ScoreKeyColumns(int head_dim, const UnitTable& table, const ColumnScores& columns,
                                                uint8_t* operand, float* factors) {
  switch (head_dim) {
    case 64:
      return ScoreColumns<kFormat, 64, false>(table, columns, operand, factors);
    case 96:
      return ScoreColumns<kFormat, 96, false>(table, columns, operand, factors);
    case 128:
      return ScoreColumns<kFormat, 128, false>(table, columns, operand, factors);
    case 256:
      return ScoreColumns<kFormat, 256, false>(table, columns, operand, factors);
  }
}

// log2 of the softmax sums of `end` columns to control->lse of every block, from the parts that each block's warps
// wrote: a maximum and integer sums, so that no order matters.
__device__ __noinline__ void ExchangeSoftmaxSums(const SoftmaxPart* parts, uint32_t end, SelectControl& control) {
  const uint32_t runs = (end + kScoreRun - 1) / kScoreRun, rank = ClusterRank(), blocks = ClusterBlocks();
  const uint32_t first = runs * rank / blocks * kMaxGroup, last = runs * (rank + 1) / blocks * kMaxGroup;
  if (threadIdx.x < kMaxGroup) {
    control.largest[threadIdx.x] = 0;
    control.sums[threadIdx.x] = 0;
    if (threadIdx.x == 0) control.spoilt = 0;
  }
  __syncthreads();
  const uint32_t query = threadIdx.x % kMaxGroup;  // strides are multiples of kMaxGroup
  uint32_t largest = 0;
  for (uint32_t i = first + threadIdx.x; i < last; i += kSelectThreads) {
    largest = max(largest, OrderedKey(parts[i].largest));
  }
  for (int step = kMaxGroup; step < 32; step *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  if (threadIdx.x % 32 < kMaxGroup) atomicMax(&control.largest[query], largest);
  ClusterSync();
  largest = 0;
  for (uint32_t r = 0; r < blocks; ++r) largest = max(largest, OfRank(&control, r)->largest[query]);
  const float reference = largest == 0 ? -INFINITY : FromOrderedKey(largest);
  uint64_t sum = 0;
  bool spoilt = false;
  for (uint32_t i = first + threadIdx.x; i < last; i += kSelectThreads) {
    const SoftmaxPart part = parts[i];
    if (part.largest == -INFINITY) continue;
    const float share = part.sum * Exp2(part.largest - reference);
    spoilt |= !(share < INFINITY);
    sum += spoilt ? 0 : MassOf(share);
  }
  for (int step = kMaxGroup; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 < kMaxGroup) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&control.sums[query]), static_cast<unsigned long long>(sum));
  }
  if (spoilt) atomicOr(&control.spoilt, 1u << query);
  ClusterSync();
  if (threadIdx.x < kMaxGroup) {
    sum = 0;
    uint32_t spoilt_queries = 0;
    for (uint32_t r = 0; r < blocks; ++r) {
      sum += OfRank(&control, r)->sums[query];
      spoilt_queries |= OfRank(&control, r)->spoilt;
    }
    const float log_sum = reference + log2f(static_cast<float>(sum) / kMassUnit);
    control.lse[query] = (spoilt_queries >> query & 1) != 0 ? NAN : reference == -INFINITY ? INFINITY : log_sum;
  }
  ClusterSync();
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

// Calls visit(column, number of marked columns before it) for the marked columns; `rows_of` says what each counts.
// Returns the count of all. The leader's threads; ends with a barrier behind it.
template <typename RowsOf, typename Visit>
__device__ __forceinline__ uint32_t VisitMarked(const uint32_t* bitmap, uint32_t last, uint64_t* warp_sums,
                                                RowsOf rows_of, Visit visit) {
  const uint32_t words = (last + 31) / 32, per_thread = (words + kSelectThreads - 1) / kSelectThreads;
  const uint32_t begin = min(threadIdx.x * per_thread, words), end = min(begin + per_thread, words);
  uint32_t rows = 0;
  for (uint32_t word = begin; word < end; ++word) {
    for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1) rows += rows_of(word * 32 + __ffs(bits) - 1);
  }
  __syncthreads();
  uint32_t before = static_cast<uint32_t>(SumBefore(rows, warp_sums));
  for (uint32_t word = begin; word < end; ++word) {
    for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1) {
      const uint32_t column = word * 32 + __ffs(bits) - 1;
      visit(column, before);
      before += rows_of(column);
    }
  }
  uint32_t total = 0;
  for (int w = 0; w < kSelectWarps; ++w) total += static_cast<uint32_t>(warp_sums[w]);
  __syncthreads();
  return total;
}

struct ListScores {
  uint32_t columns;      // scored
  uint32_t summed;       // of these in the softmaxes: the rest is the tail behind the last complete granule
  uint32_t first, last;  // that may be selected
  const uint32_t* granules;
};

// Share of the softmax that sinks, selection and recent window hold, averaged over the queries: exact where every key
// was scored, otherwise at least this, what is not scored taken as its pages' bounds. The leader's threads.
__device__ __noinline__ float CapturedMass(const SelectLaunch& launch, const SelectionList& list,
                                           const ListScores& scored, const float* key_scores, const float* page_scores,
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
    for (uint32_t c = scored.summed + threadIdx.x; c < scored.columns; c += kSelectThreads) tail += share(q, c);
    mass = BlockSum(mass + tail, control.warp_masses);
    masses[q] = mass;
    if (scored.granules != nullptr) totals[q] = 1 + BlockSum(tail, control.warp_masses);
  }
  if (scored.granules != nullptr) {
    const uint32_t page_rows = launch.params.pages.page_tokens, num_pages = list.last / page_rows;
    const uint32_t num_granules = (scored.columns + kGranule - 1) / kGranule;
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

// The list's pages by bound; keeps those that hold candidate_pages * page_tokens rows, and lists the granules that are
// scored: theirs, the sinks', and all from the last page boundary below the recent window on. Every block of the
// cluster finds the number of granules in the leader's control.
__device__ __noinline__ void KeepCandidates(const SelectLaunch& launch, const SelectionList& list,
                                            const float* page_scores, uint32_t* granules, const SelectMemory& memory) {
  const uint32_t page_rows = launch.params.pages.page_tokens;
  const Importance importance{.scores = page_scores,
                              .stride = launch.page_stride,
                              .lse = nullptr,
                              .scored_end = list.last / page_rows,
                              .group = launch.params.group,
                              .kind = ImportanceKind::kMax,
                              .aligned = true};
  const uint32_t first_page = list.first / page_rows, last_page = (list.last + page_rows - 1) / page_rows;
  const CutRule rule{.rows = launch.params.candidate_pages * page_rows,
                     .mass = 0,
                     .by_mass = false,
                     .unit_rows = page_rows,
                     .first_row = list.first,
                     .last_row = list.last};
  MarkTopK(importance, first_page, last_page, launch.params.candidate_pages + 3, rule, memory.top_k);
  if (ClusterRank() != 0) return;
  uint32_t* bitmap = memory.top_k.bitmap;
  uint32_t* wanted = memory.top_k.bins;  // bits of granules; they fit, as pages of a granule or more are not larger
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
  const uint32_t count = VisitMarked(
      wanted, last_granule, memory.top_k.control->warp_rows, [](uint32_t) { return 1u; },
      [&](uint32_t granule, uint32_t place) { granules[place] = granule; });
  if (threadIdx.x == 0) memory.control->num_granules = count;
}

__device__ __forceinline__ ImportanceKind KindOf(Aggregation aggregation) {
  return aggregation == Aggregation::kSoftmaxSum ? ImportanceKind::kSoftmaxSum
         : aggregation == Aggregation::kMax      ? ImportanceKind::kMax
                                                 : ImportanceKind::kMean;
}

// Takes the best of the scored columns: selected positions, their count, and the captured mass.
__device__ __noinline__ void SelectColumns(const SelectLaunch& launch, uint32_t list_index, const SelectionList& list,
                                           const ListScores& scored, const float* key_scores, const float* page_scores,
                                           const SelectMemory& memory) {
  const SelectParams& params = launch.params;
  SelectControl& control = *memory.control;
  const Importance importance{.scores = key_scores,
                              .stride = launch.key_stride,
                              .lse = control.lse,
                              .scored_end = ~0u,
                              .group = params.group,
                              .kind = KindOf(params.aggregation),
                              .aligned = true};
  const bool by_mass = params.min_mass > 0, leads = ClusterRank() == 0;
  CutRule rule{.rows = list.budget, .mass = 0, .by_mass = by_mass, .unit_rows = 1, .first_row = 0, .last_row = 0};
  bool none = false;
  if (by_mass && leads) {
    double held = 0;
    for (uint32_t c = threadIdx.x; c < min(scored.first, scored.summed); c += kSelectThreads) {
      held += importance.SoftmaxSum(c);
    }
    for (uint32_t c = scored.last + threadIdx.x; c < scored.summed; c += kSelectThreads)
      held += importance.SoftmaxSum(c);
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
  uint32_t* selected = params.selected + static_cast<int64_t>(list_index) * params.max_budget;
  const uint32_t* granules = scored.granules;
  const uint32_t count = VisitMarked(
      memory.top_k.bitmap, scored.last, control.top_k.warp_rows, [](uint32_t) { return 1u; },
      [&](uint32_t column, uint32_t place) {
        selected[place] = granules == nullptr ? column : granules[column / kGranule] * kGranule + column % kGranule;
      });
  if (threadIdx.x == 0) params.counts[list_index] = count;
  if (params.captured_mass == nullptr) return;
  const float mass = CapturedMass(launch, list, scored, key_scores, page_scores, memory);
  if (threadIdx.x == 0) params.captured_mass[list_index] = mass;
}

// Takes the pages of the greatest importance, the fewest that hold the budget; the least of them gives its first rows.
__device__ __noinline__ void SelectWholePages(const SelectLaunch& launch, uint32_t list_index,
                                              const SelectionList& list, const float* page_scores,
                                              const SelectMemory& memory) {
  const SelectParams& params = launch.params;
  const uint32_t page_rows = params.pages.page_tokens;
  const Importance importance{.scores = page_scores,
                              .stride = launch.page_stride,
                              .lse = memory.control->lse,
                              .scored_end = list.last / page_rows,
                              .group = params.group,
                              .kind = KindOf(params.aggregation),
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
  uint32_t* selected = params.selected + static_cast<int64_t>(list_index) * params.max_budget;
  const auto rows_of = [&](uint32_t page) { return rule.RowsOf(page); };
  const uint32_t rows =
      VisitMarked(memory.top_k.bitmap, last_page, memory.control->top_k.warp_rows, rows_of, [](uint32_t, uint32_t) {});
  const uint32_t excess = rows > list.budget ? rows - list.budget : 0, least = ColumnOf(cut);
  VisitMarked(
      memory.top_k.bitmap, last_page, memory.control->top_k.warp_rows,
      [&](uint32_t page) { return rule.RowsOf(page) - (page == least ? excess : 0); },
      [&](uint32_t page, uint32_t place) {
        const uint32_t begin = max(page * page_rows, list.first),
                       count = rule.RowsOf(page) - (page == least ? excess : 0);
        for (uint32_t i = 0; i < count; ++i) selected[place + i] = begin + i;
      });
  if (threadIdx.x == 0) params.counts[list_index] = rows - excess;
}

inline __global__ void __launch_bounds__(kSelectThreads, 2) SelectKernel(const __grid_constant__ SelectLaunch launch) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  const SelectParams& params = launch.params;
  const SelectMemory memory =
      SelectMemory::Of(dynamic, launch.capacity, launch.bitmap_words, params.min_mass > 0 && !launch.pages_alone);
  const uint32_t list_index = blockIdx.x / ClusterBlocks();
  const SelectionList list = params.lists[list_index];
  const float* queries = params.queries + static_cast<int64_t>(list.query) * params.group * params.head_dim;
  float* key_scores = launch.key_scores + launch.key_stride * params.group * list_index;
  float* page_scores = launch.page_scores + launch.page_stride * params.group * list_index;
  SoftmaxPart* parts = launch.parts + static_cast<int64_t>(launch.max_runs) * kMaxGroup * list_index;
  const uint32_t* blocks = params.blocks + list.first_block;
  const uint32_t selectable = list.last > list.first ? list.last - list.first : 0;

  ListScores scored{list.num_keys, list.num_keys, list.first, list.last, nullptr};
  const uint32_t page_rows = params.pages.page_tokens;
  const bool two_stage =
      launch.two_stage && selectable > params.candidate_pages * page_rows && selectable >= params.score_all_below;
  if (two_stage || launch.pages_alone) {
    const uint32_t pages = list.num_keys / page_rows, shift = page_rows == 8 ? 2 : page_rows == 16 ? 1 : 0;
    const int64_t page_bytes = int64_t{4} * params.head_dim;
    const UnitTable table{
        static_cast<const uint8_t*>(params.pages.bounds), nullptr, blocks, page_bytes << shift, page_bytes, shift};
    const bool sums = launch.pages_alone && params.aggregation == Aggregation::kSoftmaxSum;
    ScorePageColumns(
        params.head_dim, table,
        {queries, params.group, params.scale, pages, page_scores, launch.page_stride, sums ? parts : nullptr, pages},
        memory.operand, memory.control->factors);
    ClusterSync();
    if (sums) ExchangeSoftmaxSums(parts, pages, *memory.control);
  }
  if (launch.pages_alone) return SelectWholePages(launch, list_index, list, page_scores, memory);
  if (two_stage) {
    uint32_t* granules = launch.granules + static_cast<int64_t>(launch.max_granules) * list_index;
    KeepCandidates(launch, list, page_scores, granules, memory);
    ClusterSync();
    const uint32_t count = OfRank(memory.control, 0)->num_granules;
    const uint32_t tail = list.num_keys % kGranule;
    scored.summed = (count - (tail != 0)) * kGranule;
    scored.columns = scored.summed + tail;
    scored.last = scored.columns - (list.num_keys - list.last);
    scored.granules = granules;
  }
  {
    const UnitTable table{static_cast<const uint8_t*>(params.keys.keys),
                          params.keys.scales,
                          blocks,
                          params.keys.block_stride,
                          params.keys.key_stride,
                          5,
                          scored.granules};
    const ColumnScores columns{queries,    params.group,      params.scale, scored.columns,
                               key_scores, launch.key_stride, parts,        scored.summed};
    if (params.keys.dtype == Dtype::kF8) {
      ScoreKeyColumns<UnitFormat::kF8>(params.head_dim, table, columns, memory.operand, memory.control->factors);
    } else {
      ScoreKeyColumns<UnitFormat::kBf16>(params.head_dim, table, columns, memory.operand, memory.control->factors);
    }
    ClusterSync();
    ExchangeSoftmaxSums(parts, scored.columns, *memory.control);
  }
  SelectColumns(launch, list_index, list, scored, key_scores, page_scores, memory);
}

// Scores alone: a warp to a run, the runs of a list side by side in the grid.
template <UnitFormat kFormat, int kDim, bool kPages>
__global__ void __launch_bounds__(kSelectThreads, 2)
    ScoreKernel(const __grid_constant__ SelectParams params, float* scores, int64_t stride) {
  __shared__ __align__(16) uint8_t operand[Operand<kFormat, kDim>::kBytes];
  __shared__ float factors[kMaxGroup];
  const SelectionList list = params.lists[blockIdx.y];
  const uint32_t page_rows = params.pages.page_tokens, end = kPages ? list.num_keys / page_rows : list.num_keys;
  const uint32_t first = (blockIdx.x * kSelectWarps + threadIdx.x / 32) * kScoreRun;
  if (blockIdx.x * kSelectWarps * kScoreRun >= end) return;
  const int query_dim = kPages ? kDim / 2 : kDim;
  LoadQueries<kFormat, kDim, kPages>(params.queries + static_cast<int64_t>(list.query) * params.group * query_dim,
                                     params.group, params.scale, operand, factors);
  __syncthreads();
  if (first >= end) return;
  UnitTable table{static_cast<const uint8_t*>(params.keys.keys),
                  params.keys.scales,
                  params.blocks + list.first_block,
                  params.keys.block_stride,
                  params.keys.key_stride,
                  5};
  if constexpr (kPages) {
    table.data = static_cast<const uint8_t*>(params.pages.bounds);
    table.block_shift = page_rows == 8 ? 2 : page_rows == 16 ? 1 : 0;
    table.unit_stride = 2 * kDim;
    table.block_stride = table.unit_stride << table.block_shift;
  }
  ScoreRun<kFormat, kDim>(table, first, end, operand, factors, params.group,
                          scores + static_cast<int64_t>(blockIdx.y) * params.group * stride, stride, nullptr, end);
}

}  // namespace winnow::cuda
