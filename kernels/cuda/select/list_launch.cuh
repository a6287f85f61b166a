#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/select/list_kernels.cuh"

// Launches of the selection that one cluster makes of a list.

namespace winnow::device {

extern template void LaunchListSelectOf<UnitFormat::kI8>(Stream, const ListLaunch&);  // in a file of its own

static_assert(kMostMarkedKeys == 32 * kBins * kGranule);  // granules have a bit each in the place of bins
inline constexpr uint32_t kMostSharedBytes = 227 * 1024;  // of a block, from compute capability 9.0 on

// Most columns that a two-stage selection scores of a list: of one that is narrowed down to pages, and of any.
struct ScoredColumns {
  uint32_t of_pages, of_all;
};
inline ScoredColumns MostScoredColumns(const SelectParams& params) {
  const uint32_t page_rows = params.pages.page_tokens;
  const uint32_t kept = params.max_kept + page_rows + 2 * kGranule;
  // Pages at both ends may be clipped; a page of fewer rows than a granule has it scored whole.
  const uint32_t pages = CandidateRows(params, params.max_budget) / page_rows + 4;
  const uint32_t of_pages = pages * std::max(page_rows, kGranule);
  return {of_pages + kept, std::max(of_pages, params.score_all_below) + kept};
}

inline ListShape ListShapeFor(const SelectParams& params, uint32_t cluster_blocks) {
  const ScoredColumns columns = MostScoredColumns(params);
  const auto part = [&](uint32_t all) {
    return (all + cluster_blocks * kListGroup - 1) / (cluster_blocks * kListGroup) * kListGroup;
  };
  ListShape shape = {};
  shape.cluster_blocks = cluster_blocks;
  shape.block_columns = part(columns.of_pages);
  shape.most_columns = part(columns.of_all);
  shape.score_stride = shape.block_columns + 4;  // queries that are stored together lie at different banks
  const uint32_t most_keys = MostGroupedKeys(params), page_rows = params.pages.page_tokens;
  shape.pages = most_keys / page_rows + 1;
  shape.groups = LeavesOutGroups(params) ? params.max_keys / (kGroupPages * page_rows) + 1 : 0;
  const uint32_t score_bytes = params.group * shape.score_stride * static_cast<uint32_t>(sizeof(float));
  // Keys of lists whose scores find no room lie in those' place.
  const uint32_t key_bytes = shape.most_columns * static_cast<uint32_t>(sizeof(uint32_t));
  shape.pages_in_shared = shape.pages * sizeof(uint32_t) <= score_bytes;
  shape.groups_in_shared = shape.groups * sizeof(uint32_t) <= score_bytes;
  uint32_t at = 0;
  const auto take = [&](size_t bytes) {
    const uint32_t begin = at;
    at += static_cast<uint32_t>((bytes + 127) / 128 * 128);
    return begin;
  };
  // Bins, and sums of a bitmap.
  const size_t page_words = kBins + (std::max(most_keys / kGranule, shape.groups) + 32) / 32;
  take(sizeof(ListControl));
  shape.page_operand = take(kMaxGroup * (4 * params.head_dim + 128));
  shape.key_operand = take(kMaxGroup * (2 * params.head_dim + 128));
  shape.tables = take(std::max(kListWarps * sizeof(StreamTables), page_words * sizeof(uint32_t)));
  shape.granules = take((columns.of_pages / kGranule + 1) * sizeof(uint32_t));
  if (shape.groups > 0) shape.kept_groups = take((shape.pages / kGroupPages + 2) * sizeof(uint32_t));
  shape.ring = take(std::max(size_t{kListWarps} * kRingBytes,
                             ClusterCutMemory::Bytes(cluster_blocks, shape.block_columns, params.min_mass > 0)));
  shape.scores = take(std::max(score_bytes, key_bytes));
  shape.bytes = at;
  return shape;
}

// The clusters that take the least time, and fit. cluster_blocks is 0 where none does: that depends on what is
// selected, not on how many lists there are or how long they may be.
inline ListShape ChooseListShape(const SelectParams& params) {
  const uint32_t multiprocessors = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  ListShape best = {};
  double least = 0;
  for (const uint32_t blocks : {1u, 2u, 4u, 8u}) {
    const ListShape shape = ListShapeFor(params, blocks);
    if (shape.bytes > kMostSharedBytes || shape.most_columns > kMostBlockColumns) continue;
    // Some multiprocessors are left over where larger clusters than pairs are packed.
    const uint32_t clusters = std::max(1u, (blocks <= 2 ? multiprocessors : multiprocessors * 15 / 16) / blocks);
    const uint32_t turns = (params.num_lists + clusters - 1) / clusters;
    // Measured with 8-bit keys at 32k: a turn takes some 20 us whatever it reads, and 64 us shared out over its blocks.
    const double time = turns * (20 + 64.0 / blocks);
    if (best.cluster_blocks == 0 || time < least) best = shape, least = time;
  }
  return best;
}

// A two-stage selection in one launch. False where that cannot be: nothing is launched then.
inline bool LaunchListSelection(Stream stream, const SelectParams& params, void* page_keys, void* group_keys,
                                float* key_scores, int64_t key_stride) {
  if (params.max_kept == 0 || params.captured_mass != nullptr || ComputeMajor() < 9) return false;
  if (params.min_mass > 0 && params.aggregation != Aggregation::kSoftmaxSum) return false;
  if (MostGroupedKeys(params) > kMostMarkedKeys) return false;
  ListShape shape = ChooseListShape(params);
  if (shape.cluster_blocks == 0 || shape.groups > 32 * kBins) return false;
  if (params.none_below) {
    SelectParams of_pages = params;
    of_pages.score_all_below = 0;
    shape = ChooseListShape(of_pages);
  }
  if (params.num_lists == 0) return true;
  const ListLaunch launch{.params = params,
                          .shape = shape,
                          .page_keys = static_cast<uint32_t*>(page_keys),
                          .group_keys = static_cast<uint32_t*>(group_keys),
                          .key_scores = key_scores,
                          .key_stride = key_stride};
  switch (params.keys.dtype) {
    case Dtype::kI8:
      LaunchListSelectOf<UnitFormat::kI8>(stream, launch);
      break;
    case Dtype::kF8:
      LaunchListSelectOf<UnitFormat::kF8>(stream, launch);
      break;
    default:
      LaunchListSelectOf<UnitFormat::kBf16>(stream, launch);
  }
  return true;
}

}  // namespace winnow::device
