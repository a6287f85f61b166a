#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/select/cluster_cut.cuh"
#include "kernels/cuda/select/list_cut.cuh"
#include "kernels/cuda/select/list_groups.cuh"
#include "kernels/cuda/select/list_memory.cuh"
#include "kernels/cuda/select/list_prefetch.cuh"
#include "kernels/cuda/select/list_queries.cuh"
#include "kernels/cuda/select/list_sinks.cuh"
#include "kernels/cuda/select/list_softmax.cuh"

// Two-stage selection of a list by one cluster in one launch: bounds of its groups of pages and of its pages, the pages
// that stay, the scores of their keys and the best of those never leave the cluster's shared memory. For lists whose
// scored columns fit there.

namespace winnow::device {

// The granules that are scored: those of the pages of the greatest bounds that hold CandidateRows, the sinks', and all
// from the last page boundary below the recent window on. Returns their number. `list` and its pages are those without
// the groups that are left out, `kept_groups` the others, null where all are. All threads of a block; ends with a
// barrier.
__device__ __forceinline__ uint32_t ListGranules(const SelectionList& list, const SelectParams& params,
                                                 const uint32_t* kept_groups, const uint32_t* page_keys,
                                                 const ListMemory& memory) {
  const uint32_t page_rows = params.pages.page_tokens, page_shift = __ffs(static_cast<int>(page_rows)) - 1;
  const uint32_t first_page = list.first >> page_shift, last_page = (list.last + page_rows - 1) >> page_shift;
  const CutRule rule{.rows = CandidateRows(params, list.budget),
                     .mass = 0,
                     .by_mass = false,
                     .unit_rows = page_rows,
                     .first_row = list.first,
                     .last_row = list.last};
  uint32_t* const bins = memory.top_k.bins;
  const auto page_bins = ValueBins<kBins>::Between(memory.control.least_page, memory.control.greatest_page);
#pragma unroll 4
  for (uint32_t page = first_page + threadIdx.x; page < last_page; page += kListThreads) {
    atomicAdd(&bins[page_bins.Of(page_keys[page])], rule.RowsOf(page));
  }
  __syncthreads();
  const uint64_t cut = CutOfCounted(ColumnsInOrder{page_keys + first_page, first_page}, last_page - first_page,
                                    page_bins, rule, memory.top_k);
  uint32_t* const wanted = bins;
  const uint32_t last_granule = (list.num_keys + kGranule - 1) / kGranule, words = (last_granule + 31) / 32;
  const uint32_t sinks_end = min(list.first, list.num_keys), tail = list.last >> page_shift << page_shift;
  const auto is_scored = [&](uint32_t granule) {
    const uint32_t row = granule * kGranule;
    if (row < sinks_end || row + kGranule > tail) return row < list.num_keys;
    for (uint32_t page = row >> page_shift; page * page_rows < row + kGranule; ++page) {
      const uint32_t begin = max(page * page_rows, list.first), end = min((page + 1) * page_rows, list.last);
      const bool reaches = page >= first_page && page < last_page && begin < row + kGranule && end > row;
      if (reaches && RankOf(page_keys[page], page) >= cut) return true;
    }
    return false;
  };
  for (uint32_t word = threadIdx.x / 32; word < words; word += kListWarps) {
    const uint32_t bits = __ballot_sync(~0u, is_scored(word * 32 + threadIdx.x % 32));
    if (threadIdx.x % 32 == 0) wanted[word] = bits;
  }
  __syncthreads();
  const uint32_t count = VisitInOrder(wanted, last_granule, memory.before, memory.control.select.top_k.warp_rows,
                                      [&](uint32_t granule, uint32_t place) {
                                        memory.granules[place] = UngroupedGranule(granule, kept_groups, page_rows);
                                      });
  __syncthreads();
  return count;
}

// Keys of the importances of four columns: functions of their scores, so that equal ones have equal keys. kSoftmaxSum:
// of their exponentials, with what those are multiplied by.
template <bool kSoftmaxSum>
__device__ __forceinline__ uint4 ImportanceKeys(const float* scores, uint32_t stride, const float* factors, int group,
                                                bool is_max) {
  float value[4] = {};
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) {
    if (q >= group) break;
    const float4 four = *reinterpret_cast<const float4*>(scores + q * stride);
    const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kSoftmaxSum) {
        value[i] = fmaf(x[i], factors[q], value[i]);
      } else {
        value[i] = q == 0 ? x[i] : is_max ? (value[i] < x[i] ? x[i] : value[i]) : value[i] + x[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kSoftmaxSum) {
      value[i] = value[i] >= 0 && value[i] < INFINITY ? value[i] : 0;
    } else {
      if (!is_max) value[i] = __fdiv_rn(value[i], static_cast<float>(group));
      if (value[i] != value[i]) value[i] = -FLT_MAX;
    }
  }
  return {OrderedKey(value[0]), OrderedKey(value[1]), OrderedKey(value[2]), OrderedKey(value[3])};
}

// Masses are those of importances.
struct KeyMass {
  static constexpr bool kCounts = true;
  uint64_t mass;
  __device__ __forceinline__ uint64_t Of(uint32_t key, uint32_t) const { return MassOf(FromOrderedKey(key)); }
};

// Importances of a block's scored columns as keys, those that may be selected counted in bins. Of the others the first
// `summed` are held.
template <bool kSoftmaxSum, typename Mass>
__device__ __forceinline__ void MakeKeys(const ListMemory& memory, const SelectParams& params, uint32_t columns,
                                         uint32_t summed, OwnColumns own, const Mass& mass, uint32_t blocks) {
  float factors[kMaxGroup] = {};
  if constexpr (kSoftmaxSum) {
#pragma unroll
    for (int q = 0; q < kMaxGroup; ++q) {
      uint64_t sum = 0;
      for (uint32_t block = 0; q < params.group && block < blocks; ++block) sum += memory.control.sums[block][q];
      factors[q] = sum == 0 ? 0 : static_cast<float>(1ull << kSumBits) / __ull2float_rn(sum);
    }
  }
  uint64_t held = 0;
  for (uint32_t column = 4 * threadIdx.x; column < columns; column += 4 * kListThreads) {
    const uint4 four = ImportanceKeys<kSoftmaxSum>(memory.scores + column, memory.score_stride, factors, params.group,
                                                   params.aggregation == Aggregation::kMax);
    *reinterpret_cast<uint4*>(memory.cut.keys + column) = four;
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i >= own.begin && column + i < own.end) {
        memory.cut.Count(OctaveBins(), keys[i], own.first + column + i, mass);
      } else if (Mass::kCounts && column + i < summed) {
        held += mass.Of(keys[i], own.first + column + i);
      }
    }
  }
  if constexpr (Mass::kCounts) memory.cut.AddHeld(held);
}

template <UnitFormat kFormat, int kDim, bool kByMass>
__global__ void __launch_bounds__(kListThreads, 1) ListSelectKernel(const __grid_constant__ ListLaunch launch) {
  if (!kHasClusters) return;
  extern __shared__ __align__(128) uint8_t dynamic[];
  const SelectParams& params = launch.params;
  const ListShape& shape = launch.shape;
  ListMemory memory(dynamic, shape, kByMass);
  ListControl& control = memory.control;
  uint32_t* const bins = memory.top_k.bins;
  const uint32_t warp = threadIdx.x / 32;
  uint8_t* const ring = dynamic + shape.ring + warp * kRingBytes;
  StreamTables& tables = reinterpret_cast<StreamTables*>(dynamic + shape.tables)[warp];
  const uint32_t rank = ClusterRank(), blocks = ClusterBlocks(), index = blockIdx.x / blocks;
  if (threadIdx.x == 0) {
    control.least_page = control.least_group = ~0u;
    control.greatest_page = control.greatest_group = 0;
  }
  if (threadIdx.x < kMaxGroup) control.own_greatest[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    InitClusterBarrier(&control.cut.arrived);
  }
  ClusterArrive();  // nothing is written to another block's memory before it runs
  const auto await_inputs = [] {
    WaitForInputs();
    LetDependentsStart();
  };
  if (!params.settled) await_inputs();
  const SelectionList list = params.lists[index];
  const uint32_t page_rows = params.pages.page_tokens, selectable = list.last > list.first ? list.last - list.first : 0;
  const bool narrows = selectable > CandidateRows(params, list.budget) && selectable >= params.score_all_below;
  uint32_t* const selected = params.selected + static_cast<int64_t>(index) * params.max_budget;
  if (list.budget == 0 || (selectable <= list.budget && (!kByMass || params.takes_all_that_fit))) {
    if (params.settled) await_inputs();
    const uint32_t count = list.budget == 0 ? 0 : selectable;
    for (uint32_t i = rank * kListThreads + threadIdx.x; i < count; i += blocks * kListThreads) {
      selected[i] = list.first + i;
    }
    if (threadIdx.x == 0 && rank == 0) params.counts[index] = count;
    return;
  }
  ListQueries<kFormat, kDim> queries;
  const auto load_queries = [&] {
    queries.Load(params.queries + static_cast<int64_t>(list.query) * params.group * kDim, params.group);
  };
  const auto store_queries = [&] {
    queries.Store(params.scale, dynamic + shape.page_operand, control.page_factors, dynamic + shape.key_operand,
                  control.key_factors);
    __syncthreads();
    ClusterWait();
  };
  if (!params.settled) load_queries();

  const uint32_t* granules = nullptr;
  uint32_t scored_end = list.num_keys, summed = list.num_keys, last = list.last;
  if (narrows) {
    uint32_t* const page_keys = shape.pages_in_shared ? reinterpret_cast<uint32_t*>(memory.scores)
                                                      : launch.page_keys + static_cast<int64_t>(shape.pages) * index;
    const auto await_queries = [&] {
      if (params.settled) {
        await_inputs();
        load_queries();
      }
      store_queries();
    };
    const auto clear_bins = [&] {
      __syncthreads();
      for (uint32_t bin = threadIdx.x; bin < kBins; bin += kListThreads) bins[bin] = 0;
    };
    const PageGroups groups = GroupsOf(params, list);
    const uint32_t* const kept_groups = groups.leaves_out() ? memory.groups : nullptr;
    const uint32_t first_tile = rank * kListWarps + warp, tile_step = blocks * kListWarps;
    if (groups.leaves_out()) {
      uint32_t* const keys = shape.groups_in_shared ? reinterpret_cast<uint32_t*>(memory.scores)
                                                    : launch.group_keys + static_cast<int64_t>(shape.groups) * index;
      const UnitTable table = GroupTable<kDim>(params, list);
      UnitStream<UnitFormat::kBf16, 2 * kDim, true> stream(table, first_tile, tile_step, groups.end, ring, tables);
      stream.Begin();
      PrefetchTiles(table, first_tile, tile_step, groups.end);
      await_queries();
      PageSink sink{keys, shape.groups_in_shared, params.group, blocks, groups.end};
      stream.Finish(dynamic + shape.page_operand, control.page_factors, sink);
      sink.End(&control.least_group, &control.greatest_group);
      clear_bins();
      ClusterSync();
      ListKeptGroups(list, groups, keys, control.least_group, control.greatest_group, memory);
      ClusterArrive();  // the bounds of pages come in the place of those of groups
    }
    const SelectionList grouped = Grouped(list, groups);
    // The page that the recent window begins in is a candidate, and not scored.
    const uint32_t page_shift = __ffs(static_cast<int>(page_rows)) - 1;
    const uint32_t last_page = (grouped.last + page_rows - 1) >> page_shift, scored_pages = grouped.last >> page_shift;
    const uint32_t block_shift = page_rows == 8 ? 2 : page_rows == 16 ? 1 : 0;
    const UnitTable table{static_cast<const uint8_t*>(params.pages.bounds),
                          nullptr,
                          params.blocks + list.first_block,
                          PageBlockStride(params.pages.block_stride, page_rows, kDim),
                          4 * kDim,
                          block_shift,
                          kept_groups};
    UnitStream<UnitFormat::kBf16, 2 * kDim, false> stream(table, first_tile, tile_step, scored_pages, ring, tables);
    stream.Begin();
    PrefetchTiles(table, first_tile, tile_step, scored_pages);
    if (groups.leaves_out()) {
      ClusterWait();
    } else {
      await_queries();
    }
    PageSink sink{page_keys, shape.pages_in_shared, params.group, blocks, scored_pages};
    stream.Finish(dynamic + shape.page_operand, control.page_factors, sink);
    sink.End(&control.least_page, &control.greatest_page);
    clear_bins();
    if (last_page > scored_pages && threadIdx.x == 0) page_keys[scored_pages] = OrderedKey(FLT_MAX);
    ClusterSync();
    const uint32_t count = ListGranules(grouped, params, kept_groups, page_keys, memory);
    const uint32_t tail = list.num_keys % kGranule;
    granules = memory.granules;
    summed = (count - (tail != 0)) * kGranule;
    scored_end = summed + tail;
    last = scored_end - (list.num_keys - list.last);
  } else if (params.settled) {
    await_inputs();
    load_queries();
  }

  const uint32_t part = (scored_end + blocks * kListGroup - 1) / (blocks * kListGroup) * kListGroup;
  const uint32_t begin = part * rank, end = max(begin, min(begin + part, scored_end)), columns = end - begin;
  if (part > shape.block_columns) {
    if (narrows || part > shape.most_columns) __trap();  // more rows are kept than max_kept
    memory.scores = launch.key_scores + launch.key_stride * params.group * index + begin;
    memory.score_stride = static_cast<uint32_t>(launch.key_stride);
    memory.cut.keys = reinterpret_cast<uint32_t*>(dynamic + shape.scores);
  }
  const OwnColumns own{begin, min(max(list.first, begin), end) - begin, min(max(last, begin), end) - begin};
  ClusterCut cut{0, begin + own.begin - list.first};
  if (kByMass || last - list.first > list.budget) {
    const bool is_softmax = params.aggregation == Aggregation::kSoftmaxSum;
    const UnitTable table{static_cast<const uint8_t*>(params.keys.keys),
                          params.keys.scales,
                          params.blocks + list.first_block,
                          params.keys.block_stride,
                          params.keys.key_stride,
                          5,
                          granules,
                          params.keys.scale_stride};
    UnitStream<kFormat, kDim, true> stream(table, begin / kTileUnits + warp, kListWarps, end, ring, tables);
    stream.Begin();
    if (!narrows) store_queries();
    KeySink sink{memory.scores, memory.score_stride, begin, summed, params.group};
    stream.Finish(dynamic + shape.key_operand, control.key_factors, sink);
    sink.End(control.own_greatest);
    __syncthreads();
    TellQueries(control.own_greatest, control.greatest, rank, blocks);
    // The rings have done: bins and keys lie there now.
    memory.cut.Clear();
    ClusterSync();
    const uint32_t own_summed = min(max(summed, begin), end) - begin;
    const auto choose = [&](auto softmax_sum, const auto& mass) {
      MakeKeys<decltype(softmax_sum)::value>(memory, params, columns, own_summed, own, mass, blocks);
      cut = CutOfCluster(memory.cut, own, last - list.first, list.budget, OctaveBins(), mass, rank, blocks);
    };
    if (is_softmax) {
      SumExponentials(memory, params.group, columns, own_summed, rank, blocks);
    }
    if constexpr (kByMass) {
      choose(std::true_type(), KeyMass{__double2ull_ru(double{params.min_mass} * params.group * double{kMassUnit})});
    } else {
      is_softmax ? choose(std::true_type(), NoMass()) : choose(std::false_type(), NoMass());
    }
    // The columns before this block's, where all are chosen.
    if (cut.least == 0) cut.before = begin + own.begin - list.first;
  }
  const uint32_t places = EmitChosen(
      own, cut.before, control.cut.warp_sums, ChosenColumns{memory.cut.keys, begin, cut.least},
      [&](uint32_t column, uint32_t place) {
        column += begin;
        selected[place] = granules == nullptr ? column : granules[column / kGranule] * kGranule + column % kGranule;
      });
  if (threadIdx.x == 0 && rank + 1 == blocks) params.counts[index] = places;
}

}  // namespace winnow::device
