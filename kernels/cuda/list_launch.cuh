#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/list_select.cuh"

// Launches of the selection that one cluster makes of a list.

namespace winnow::cuda {

inline constexpr uint32_t kMostSharedBytes = 227 * 1024;  // of a block, from compute capability 9.0 on

// Most columns that a two-stage selection scores of a list.
inline uint32_t MostScoredColumns(const SelectParams& params) {
  const uint32_t page_rows = params.pages.page_tokens;
  // Pages at both ends may be clipped; a page of fewer rows than a granule has it scored whole.
  const uint32_t pages = CandidateRows(params, params.max_budget) / page_rows + 4;
  return std::max(pages * std::max(page_rows, kGranule), params.score_all_below) + params.max_kept + page_rows +
         2 * kGranule;
}

inline ListShape ListShapeFor(const SelectParams& params, uint32_t cluster_blocks) {
  const uint32_t columns = MostScoredColumns(params);
  ListShape shape = {};
  shape.cluster_blocks = cluster_blocks;
  shape.block_columns = (columns + cluster_blocks * kListGroup - 1) / (cluster_blocks * kListGroup) * kListGroup;
  shape.score_stride = shape.block_columns + 4;  // queries that are stored together lie at different banks
  shape.pages = params.max_keys / params.pages.page_tokens + 1;
  const uint32_t score_bytes = params.group * shape.score_stride * static_cast<uint32_t>(sizeof(float));
  shape.pages_in_shared = shape.pages * sizeof(uint32_t) <= score_bytes;
  uint32_t at = 0;
  const auto take = [&](size_t bytes) {
    const uint32_t begin = at;
    at += static_cast<uint32_t>((bytes + 127) / 128 * 128);
    return begin;
  };
  const size_t page_words = kBins + (params.max_keys / kGranule + 32) / 32;  // bins, and sums of a bitmap
  take(sizeof(ListControl));
  shape.page_operand = take(kMaxGroup * (4 * params.head_dim + 128));
  shape.key_operand = take(kMaxGroup * (2 * params.head_dim + 128));
  shape.tables = take(std::max(kListWarps * sizeof(StreamTables), page_words * sizeof(uint32_t)));
  shape.granules = take((columns / kGranule + 1) * sizeof(uint32_t));
  shape.ring = take(std::max(size_t{kListWarps} * kRingBytes,
                             ClusterCutMemory::Bytes(cluster_blocks, shape.block_columns, params.min_mass > 0)));
  shape.scores = take(score_bytes);
  shape.bytes = at;
  return shape;
}

// The clusters that take the fewest turns of the multiprocessors, and fit. cluster_blocks is 0 where none does: that
// depends on what is selected, not on how many lists there are or how long they may be.
inline ListShape ChooseListShape(const SelectParams& params) {
  const uint32_t multiprocessors = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  ListShape best = {};
  double least = 0;
  for (const uint32_t blocks : {1u, 2u, 4u, 8u}) {
    const ListShape shape = ListShapeFor(params, blocks);
    if (shape.bytes > kMostSharedBytes || shape.block_columns > kMostBlockColumns) continue;
    const uint32_t turns = (params.num_lists * blocks + multiprocessors - 1) / multiprocessors;
    const double time = static_cast<double>(turns) / blocks;
    if (best.cluster_blocks == 0 || time < least) best = shape, least = time;
  }
  return best;
}

template <UnitFormat kFormat, int kDim>
void LaunchListSelect(Stream stream, const ListLaunch& launch) {
  LaunchDependent(
      launch.params.min_mass > 0 ? ListSelectKernel<kFormat, kDim, true> : ListSelectKernel<kFormat, kDim, false>,
      {.grid = dim3(launch.params.num_lists * launch.shape.cluster_blocks),
       .threads = kListThreads,
       .shared_bytes = launch.shape.bytes,
       .cluster_ctas = launch.shape.cluster_blocks},
      stream, launch);
}

template <UnitFormat kFormat>
void LaunchListSelectOf(Stream stream, const ListLaunch& launch) {
  switch (launch.params.head_dim) {
    case 64:
      return LaunchListSelect<kFormat, 64>(stream, launch);
    case 96:
      return LaunchListSelect<kFormat, 96>(stream, launch);
    case 128:
      return LaunchListSelect<kFormat, 128>(stream, launch);
    case 256:
      return LaunchListSelect<kFormat, 256>(stream, launch);
  }
}

// A two-stage selection in one launch. False where that cannot be: nothing is launched then.
inline bool LaunchListSelection(Stream stream, const SelectParams& params, void* page_keys) {
  if (params.max_kept == 0 || params.captured_mass != nullptr || ComputeMajor() < 9) return false;
  if (params.min_mass > 0 && params.aggregation != Aggregation::kSoftmaxSum) return false;
  if (params.max_keys > 32 * kBins * kGranule) return false;
  ListShape shape = ChooseListShape(params);
  if (shape.cluster_blocks == 0) return false;
  if (params.none_below) {
    SelectParams of_pages = params;
    of_pages.score_all_below = 0;
    shape = ChooseListShape(of_pages);
  }
  if (params.num_lists == 0) return true;
  const ListLaunch launch{.params = params, .shape = shape, .page_keys = static_cast<uint32_t*>(page_keys)};
  params.keys.dtype == Dtype::kF8 ? LaunchListSelectOf<UnitFormat::kF8>(stream, launch)
                                  : LaunchListSelectOf<UnitFormat::kBf16>(stream, launch);
  return true;
}

}  // namespace winnow::cuda
