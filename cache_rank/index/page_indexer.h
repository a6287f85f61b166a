#pragma once
#include <cstdint>

#include "cache_rank/index/index_layout.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Summarises pages of keys as pseudo-keys [hi | lo] of dimension 2 * head_dim, whose score by the pseudo-query
// [max(q, 0) | min(q, 0)] is the largest q.k over the box lo <= k <= hi:
//   bounds   hi and lo are the elements' maxima and minima (Quest, arXiv:2406.10774, section 3.2): no key of the page
//            scores higher.
//   cuboid   hi, lo = c +- r with c the centre of that box and r the mean distance |k - c| of the keys from it, element
//            by element (ArkVale, NeurIPS 2024, the section on page summarization: "cuboid-mean"): tighter, no bound.
// Elements that are not finite do not count; an element without any finite one is 0. int8 bounds are rounded outwards
// and hold for the keys as they were and as their tile, int8 or int4, has them. Threads may index different pages.
class PageIndexer {
 public:
  PageIndexer(const KernelTable* kernels, const KvLayout& layout, const IndexLayout& index);

  // The page's keys are rows [first_row, first_row + page_tokens) of consecutive blocks, of which `tiles` are the index
  // tiles; those of rows of int8 are not read. Writes key `slot` of each tile that is not null.
  void Index(const void* const* blocks, const void* const* tiles, uint32_t first_row, int slot, void* bounds_tile,
             void* cuboid_tile) const;

 private:
  struct Box;

  const float* LoadKey(const void* const* blocks, uint32_t row, float* key) const;
  // Keys [row, row + count) of an int8 or int4 tile.
  void IncludeAsScored(const void* tile, int row, int count, Box* box) const;
  void Write(const float* pseudo, int slot, void* tile) const;
  void WriteInt8Outwards(const float* pseudo, int slot, void* tile) const;

  const KernelTable* const kernels_;
  const KvLayout layout_;
  const IndexLayout index_;
};

}  // namespace winnow
