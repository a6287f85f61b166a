#pragma once
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/score_list.cuh"
#include "kernels/cuda/select_memory.cuh"
#include "kernels/cuda/unit_stream.cuh"

// Two-stage selection of a list by one cluster in one launch: bounds of its pages, the pages that stay, the scores of
// their keys and the best of those never leave the cluster's shared memory. For lists whose scored columns fit there.

namespace winnow::cuda {

inline constexpr int kListThreads = 512;
inline constexpr int kListWarps = kListThreads / 32;
inline constexpr uint32_t kListGroup = 128;  // columns whose softmax is summed in one order

// Sizes of a launch, and where the parts of a block's shared memory lie.
struct ListShape {
  uint32_t cluster_blocks;
  uint32_t block_columns;  // whose scores a block holds: a multiple of kListGroup
  uint32_t score_stride;   // floats of a query
  uint32_t pages, granules;
  bool pages_in_shared;
  uint32_t operand, tables, bins, parts, granule_list, ring, scores, bytes;  // offsets
};

struct ListLaunch {
  SelectParams params;
  ListShape shape;
  uint32_t* page_keys;  // [num_lists, pages], where they do not fit in shared memory
};

struct ListControl {
  SelectControl select;
  float factors[kMaxGroup];
};

// The greatest bound of a page, to every block of the cluster.
struct PageSink {
  uint32_t* keys;
  bool is_shared;
  int group;
  uint32_t blocks, end, scored_end;

  __device__ __forceinline__ void Add(uint32_t page, const float (&scores)[2]) const {
    const int lane = threadIdx.x % 32, query = lane % 4 * 2;
    float most = query < group ? scores[0] : -INFINITY;
    if (query + 1 < group) most = fmaxf(most, scores[1]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if (page >= end) return;
    const uint32_t key = OrderedKey(page >= scored_end ? FLT_MAX : most);
    if (!is_shared) {
      if (lane % 4 == 0) keys[page] = key;
      return;
    }
    for (uint32_t rank = lane % 4; rank < blocks; rank += 4) *OfRank(keys + page, rank) = key;
  }
};

struct KeySink {
  float* scores;  // of the block's columns
  uint32_t stride, begin, end;
  int group;

  __device__ __forceinline__ void Add(uint32_t column, const float (&values)[2]) const {
    const int query = threadIdx.x % 4 * 2;
    if (column >= end) return;
    float* at = scores + query * stride + (column - begin);
    if (query < group) at[0] = values[0];
    if (query + 1 < group) at[stride] = values[1];
  }
};

// The granules that are scored: those of the pages at or above the cut, the sinks', and all from the last page boundary
// below the recent window on. Returns their number.
__device__ __forceinline__ uint32_t ListGranules(const SelectionList& list, uint32_t page_rows,
                                                 const uint32_t* page_keys, uint64_t cut, uint32_t* wanted,
                                                 uint32_t* sums, uint32_t* granules) {
  const uint32_t first_page = list.first / page_rows, last_page = (list.last + page_rows - 1) / page_rows;
  const uint32_t last_granule = (list.num_keys + kGranule - 1) / kGranule, words = (last_granule + 31) / 32;
  for (uint32_t word = threadIdx.x; word < words; word += kListThreads) wanted[word] = 0;
  __syncthreads();
  const auto want = [&](uint32_t granule) { atomicOr(&wanted[granule / 32], 1u << granule % 32); };
  for (uint32_t page = first_page + threadIdx.x; page < last_page; page += kListThreads) {
    if (RankOf(page_keys[page], page) < cut) continue;
    const uint32_t end = min((page + 1) * page_rows, list.last);
    for (uint32_t g = max(page * page_rows, list.first) / kGranule; g <= (end - 1) / kGranule; ++g) want(g);
  }
  for (uint32_t g = threadIdx.x; g * kGranule < min(list.first, list.num_keys); g += kListThreads) want(g);
  for (uint32_t g = list.last / page_rows * page_rows / kGranule + threadIdx.x; g < last_granule; g += kListThreads) {
    want(g);
  }
  __syncthreads();
  return VisitMarked(wanted, last_granule, sums, [&](uint32_t granule, uint32_t place) { granules[place] = granule; });
}

// Turns the scores of a group of columns into exponentials relative to their greatest, by one warp, and tells all
// blocks the softmaxes. Columns at and above `summed` do not count.
__device__ __forceinline__ void ExponentiateGroup(float* scores, uint32_t stride, uint32_t column, uint32_t summed,
                                                  int group, SoftmaxPart* parts, uint32_t blocks) {
  const int lane = threadIdx.x % 32;
  const uint32_t own = column + 4 * lane;
#pragma unroll 2
  for (int q = 0; q < group; ++q) {
    float4& four = *reinterpret_cast<float4*>(scores + q * stride + 4 * lane);
    float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = own + i < summed ? x[i] * kLog2E : -INFINITY;
    float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const float reference = most == -INFINITY ? 0 : most;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = Exp2(x[i] - reference);
    float sum = (x[0] + x[1]) + (x[2] + x[3]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    four = {x[0], x[1], x[2], x[3]};
    if (lane < blocks) *OfRank(parts + q, lane) = {most, sum};
  }
}

// Keys of the importances of four columns, from exponentials or scores.
__device__ __forceinline__ uint4 ImportanceKeys(const float* scores, uint32_t stride, int group,
                                                Aggregation aggregation, const float (&factors)[kMaxGroup]) {
  float value[4] = {};
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) {
    if (q >= group) break;
    const float4 four = *reinterpret_cast<const float4*>(scores + q * stride);
    const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (aggregation == Aggregation::kSoftmaxSum) {
        value[i] += x[i] * factors[q];
      } else if (q == 0) {
        value[i] = x[i];
      } else if (aggregation == Aggregation::kMax) {
        value[i] = value[i] < x[i] ? x[i] : value[i];
      } else {
        value[i] += x[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (aggregation == Aggregation::kSoftmaxSum) value[i] = value[i] >= 0 && value[i] < INFINITY ? value[i] : 0;
    if (aggregation == Aggregation::kMean) value[i] = __fdiv_rn(value[i], static_cast<float>(group));
    if (value[i] != value[i]) value[i] = -FLT_MAX;
  }
  return {OrderedKey(value[0]), OrderedKey(value[1]), OrderedKey(value[2]), OrderedKey(value[3])};
}

template <UnitFormat kFormat, int kDim>
__global__ void __launch_bounds__(kListThreads, 1) ListSelectKernel(const __grid_constant__ ListLaunch launch) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  const SelectParams& params = launch.params;
  const ListShape& shape = launch.shape;
  ListControl& control = *reinterpret_cast<ListControl*>(dynamic);
  TopKMemory memory = {};
  memory.control = &control.select.top_k;
  memory.bins = reinterpret_cast<uint32_t*>(dynamic + shape.bins);
  uint8_t* const operand = dynamic + shape.operand;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint8_t* const ring = dynamic + shape.ring + warp * kRingBytes;
  StreamTables& tables = reinterpret_cast<StreamTables*>(dynamic + shape.tables)[warp];
  float* const scores = reinterpret_cast<float*>(dynamic + shape.scores);
  SoftmaxPart* const parts = reinterpret_cast<SoftmaxPart*>(dynamic + shape.parts);
  uint32_t* const granule_list = reinterpret_cast<uint32_t*>(dynamic + shape.granule_list);
  const uint32_t rank = ClusterRank(), blocks = ClusterBlocks(), index = blockIdx.x / blocks;
  ClusterArrive();  // nothing is written to another block's memory before it runs
  WaitForInputs();
  LetDependentsStart();
  const SelectionList list = params.lists[index];
  const float* queries = params.queries + static_cast<int64_t>(list.query) * params.group * kDim;
  const uint32_t page_rows = params.pages.page_tokens, selectable = list.last > list.first ? list.last - list.first : 0;
  const bool narrows = selectable > params.candidate_pages * page_rows && selectable >= params.score_all_below;

  const uint32_t* granules = nullptr;
  uint32_t scored_end = list.num_keys, summed = list.num_keys, last = list.last;
  if (narrows) {
    uint32_t* const page_keys = shape.pages_in_shared ? reinterpret_cast<uint32_t*>(scores)
                                                      : launch.page_keys + static_cast<int64_t>(shape.pages) * index;
    const uint32_t num_pages = list.num_keys / page_rows;
    const UnitTable table{static_cast<const uint8_t*>(params.pages.bounds),
                          nullptr,
                          params.blocks + list.first_block,
                          int64_t{4 * kDim} << (page_rows == 8    ? 2
                                                : page_rows == 16 ? 1
                                                                  : 0),
                          4 * kDim,
                          page_rows == 8    ? 2u
                          : page_rows == 16 ? 1u
                                            : 0u};
    UnitStream<UnitFormat::kBf16, 2 * kDim> stream(table, rank * kListWarps + warp, blocks * kListWarps, num_pages,
                                                   ring, tables);
    stream.Begin();
    LoadQueries<UnitFormat::kBf16, 2 * kDim, true>(queries, params.group, params.scale, operand, control.factors);
    __syncthreads();
    ClusterWait();
    const PageSink sink{page_keys, shape.pages_in_shared, params.group, blocks, num_pages, list.last / page_rows};
    stream.Finish(operand, control.factors, sink);
    ClusterSync();
    const uint32_t first_page = list.first / page_rows, last_page = (list.last + page_rows - 1) / page_rows;
    // The page that the recent window begins in may be incomplete.
    if (last_page > num_pages) {
      if (threadIdx.x == 0) page_keys[last_page - 1] = OrderedKey(FLT_MAX);
      __syncthreads();
    }
    const CutRule rule{.rows = params.candidate_pages * page_rows,
                       .mass = 0,
                       .by_mass = false,
                       .unit_rows = page_rows,
                       .first_row = list.first,
                       .last_row = list.last};
    const uint64_t cut = CutOf(ColumnsInOrder{page_keys + first_page, first_page}, last_page - first_page, rule,
                               Importance<ImportanceKind::kValues>{}, memory);
    __syncthreads();  // the bins have been read
    const uint32_t count =
        ListGranules(list, page_rows, page_keys, cut, memory.bins, control.select.top_k.warp_rows, granule_list);
    const uint32_t tail = list.num_keys % kGranule;
    granules = granule_list;
    summed = (count - (tail != 0)) * kGranule;
    scored_end = summed + tail;
    last = scored_end - (list.num_keys - list.last);
  }

  const uint32_t part = (scored_end + blocks * kListGroup - 1) / (blocks * kListGroup) * kListGroup;
  const uint32_t begin = min(part * rank, scored_end), end = min(begin + part, scored_end);
  {
    const UnitTable table{static_cast<const uint8_t*>(params.keys.keys),
                          params.keys.scales,
                          params.blocks + list.first_block,
                          params.keys.block_stride,
                          params.keys.key_stride,
                          5,
                          granules};
    UnitStream<kFormat, kDim> stream(table, begin / kTileUnits + warp, kListWarps, end, ring, tables);
    stream.Begin();
    LoadQueries<kFormat, kDim, false>(queries, params.group, params.scale, operand, control.factors);
    __syncthreads();
    if (!narrows) ClusterWait();
    const KeySink sink{scores, shape.score_stride, begin, end, params.group};
    stream.Finish(operand, control.factors, sink);
  }
  __syncthreads();
  const bool is_softmax = params.aggregation == Aggregation::kSoftmaxSum;
  const uint32_t num_groups = (end - begin + kListGroup - 1) / kListGroup, first_group = begin / kListGroup;
  if (is_softmax) {
    for (uint32_t g = warp; g < num_groups; g += kListWarps) {
      ExponentiateGroup(scores + g * kListGroup, shape.score_stride, begin + g * kListGroup, summed, params.group,
                        parts + (first_group + g) * kMaxGroup, blocks);
    }
  }
  ClusterSync();
  if (is_softmax) SumSoftmaxes(parts, (scored_end + kListGroup - 1) / kListGroup, control.select);
  // The rings have done: the leader's holds the importances.
  uint32_t* const keys = reinterpret_cast<uint32_t*>(dynamic + shape.ring);
  uint32_t* const leaders = OfRank(keys, 0);
  for (uint32_t g = warp; g < num_groups; g += kListWarps) {
    float factors[kMaxGroup] = {};
    if (is_softmax) {
      const SoftmaxPart* of_group = parts + (first_group + g) * kMaxGroup;
#pragma unroll
      for (int q = 0; q < kMaxGroup; ++q) factors[q] = Exp2(of_group[q].largest - control.select.lse[q]);
    }
    const uint4 four = ImportanceKeys(scores + g * kListGroup + 4 * lane, shape.score_stride, params.group,
                                      params.aggregation, factors);
    *reinterpret_cast<uint4*>(leaders + begin + g * kListGroup + 4 * lane) = four;
  }
  if (rank != 0) return ClusterArrive();
  ClusterSync();

  const uint32_t first = list.first, count = last > first ? last - first : 0;
  uint32_t* const selected = params.selected + static_cast<int64_t>(index) * params.max_budget;
  if (count == 0 || list.budget == 0) {
    if (threadIdx.x == 0) params.counts[index] = 0;
    return;
  }
  const CutRule rule{.rows = list.budget, .mass = 0, .by_mass = false, .unit_rows = 1, .first_row = 0, .last_row = 0};
  const uint64_t cut =
      CutOf(ColumnsInOrder{keys + first, first}, count, rule, Importance<ImportanceKind::kValues>{}, memory);
  __syncthreads();  // the bins have been read
  uint32_t* const chosen = memory.bins;
  for (uint32_t base = warp * 32; base < last; base += kListThreads) {
    const uint32_t column = base + lane;
    const uint32_t bits = __ballot_sync(~0u, column >= first && column < last && RankOf(keys[column], column) >= cut);
    if (lane == 0) chosen[base / 32] = bits;
  }
  __syncthreads();
  const uint32_t rows = VisitMarked(chosen, last, control.select.top_k.warp_rows, [&](uint32_t column, uint32_t place) {
    selected[place] = granules == nullptr ? column : granules[column / kGranule] * kGranule + column % kGranule;
  });
  if (threadIdx.x == 0) params.counts[index] = rows;
}

}  // namespace winnow::cuda
