#pragma once
#include <cstdint>

#include "kernels/cuda/select/unit_scores.cuh"
#include "kernels/device/params/selection.h"

// Lists without the groups of pages that they leave out.

namespace winnow::device {

static_assert(kGranule == kGroupPages);  // a list of groups says which pages are columns (UnitTable)

// Where the bounds of a list's groups lie: one after the other, a tile of them to a "block".
template <int kDim>
__device__ __forceinline__ UnitTable GroupTable(const SelectParams& params, const SelectionList& list) {
  constexpr int64_t kBytes = 4 * kDim;
  const int64_t first = list.first_block / GroupBlocks(params.pages.page_tokens);
  return {static_cast<const uint8_t*>(params.pages.group_bounds) + first * kBytes,
          nullptr,
          nullptr,
          kBytes * kGroupPages,
          kBytes,
          4};
}

// The list as it is without the rows of the groups that it leaves out, which all lie before its last ones. Pages and
// granules of it are numbered without them, too.
__device__ __forceinline__ SelectionList Grouped(SelectionList list, const PageGroups& groups) {
  const uint32_t left_out = groups.num_left_out() * groups.rows;
  list.num_keys -= left_out;
  list.last -= left_out;
  return list;
}

// The granule of the list itself; `kept` [groups], null where none is left out.
__device__ __forceinline__ uint32_t UngroupedGranule(uint32_t granule, const uint32_t* kept, uint32_t page_rows) {
  // A group has as many granules as a page has rows.
  return kept == nullptr ? granule : kept[granule / page_rows] * page_rows + granule % page_rows;
}

}  // namespace winnow::device
