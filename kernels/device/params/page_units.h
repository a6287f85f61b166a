#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/params/selection.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Selections of whole pages beyond the plain top-k of SelectionKernels: boxes drawn in to the mean distance of a page's
// keys, physical pages that have the best score of their logical ones, a list for each query head, pages read one after
// the other until their mass is enough, and selections that are kept for several positions.

// The cuboid-mean of pages (ArkVale; SparseServe, arXiv:2509.24626; PSA, arXiv:2503.00392): [centre + radius | centre -
// radius] with the centre between maxima and minima and the mean distance from it as radius, dimension by dimension.
// Written for each page of which the last row is among the rows [position, position + rows_per_list) of a list, which
// are stored already. They lie as PageStore::bounds do and are scored as those.
struct CuboidParams {
  const SelectionList* lists = nullptr;  // [num_lists], first_block alone is read
  int num_lists = 0;
  const uint32_t* positions = nullptr;  // [num_lists] of each list's first row
  int rows_per_list = 1;
  const uint32_t* blocks = nullptr;
  const void* row_pool = nullptr;  // [num_blocks][32][2 * head_dim] bf16; device or pinned host memory
  // Set: row_pool has codes of int8 instead, and these are their scales, [num_blocks][32][2].
  const float* row_scales = nullptr;
  int head_dim = 0;          // 64, 96, 128 or 256
  int page_tokens = 32;      // 16 or 32
  void* cuboids = nullptr;   // [num_blocks][32 / page_tokens][2 * head_dim] bf16
  int64_t block_stride = 0;  // PageStore::block_stride
};

// Chooses units of consecutive rows, pages or several pages together, by scores of their pages. Rows [first, last) of a
// list may be selected; units are clipped by that range.
//   importance of a page   over `heads_per_list` queries, with softmaxes over the list's complete pages
//   importance of a unit   the greatest of its pages' that lie below `last`; where none does, above all others
// Taken are the units of the greatest importance, ties to the lower one, the fewest that hold the budget; the last of
// them gives its first rows. With min_mass they are read one after the other, in that order and as long as the budget
// lasts, until the sinks, the window and what has been read hold that share of the softmax, averaged over the queries,
// if every unit not read held as much as the least of those read (PSA, arXiv:2503.00392, Algorithm 1).
struct UnitSelectParams {
  SelectParams list;          // lists .. group, queries, scale, aggregation, max_keys, max_budget, min_mass; pages
  int lists_per_group = 1;    // selections of a list: one, or one for each query
  uint32_t unit_tokens = 32;  // a multiple of pages.page_tokens, at most 64
  // Set: positions [num_lists / num_kv_heads] of the lists' rows. Lists of rows without one (~0u) are left alone:
  // others may say theirs. So are those at positions that are no anchors (attended_set.h), whose selection is kept:
  // anchors begin behind the prompt. A reuse_interval above 1 needs both.
  uint32_t reuse_interval = 1;
  const uint32_t* positions = nullptr;
  const uint32_t* prompt_tokens = nullptr;
  int num_kv_heads = 1;
  uint32_t* selected = nullptr;  // [num_lists * lists_per_group, max_budget] positions, ascending
  uint32_t* counts = nullptr;    // [num_lists * lists_per_group], count_stride words apart
  uint32_t count_stride = 1;
  void* scratch = nullptr;  // unit_scratch_bytes, 256-byte aligned
};

// Lists that select nothing at this plan are not to be scored: those of streaming heads, which have a budget of 0, and
// those that keep a selection (UnitSelectParams). num_keys of both becomes 0. Behind PredictKernels::begin_plan.
struct HoldListsParams {
  SelectionList* lists = nullptr;  // [num_layers, max_rows, num_kv_heads]
  int num_layers = 0;
  int max_rows = 0;
  int num_rows = 0;
  int num_kv_heads = 0;
  uint32_t reuse_interval = 1;
  const uint32_t* positions = nullptr;      // [num_rows]
  const uint32_t* prompt_tokens = nullptr;  // [num_rows]
};

// Tells attention how many rows are selected: counts [num_lists * lists_per_group] to words `stride` apart. Lists
// without a position in list_positions (kNoPosition) are left alone: others may say theirs.
struct TellCountsParams {
  const uint32_t* counts = nullptr;
  const uint32_t* list_positions = nullptr;  // [num_lists]
  int num_lists = 0;
  int lists_per_group = 1;
  uint32_t* to = nullptr;
  uint32_t stride = 1;
};

struct PageUnitKernels {
  void (*index_cuboids)(Stream, const CuboidParams&);
  size_t (*unit_scratch_bytes)(const UnitSelectParams&);
  // Of pages whose scores lie in `scores` [num_lists, group, stride] (SelectionKernels::score_pages).
  void (*select_units)(Stream, const UnitSelectParams&, const float* scores, int64_t stride);
  void (*hold_lists)(Stream, const HoldListsParams&);
  void (*tell_counts)(Stream, const TellCountsParams&);
};
extern const PageUnitKernels kPageUnitKernels;

// Units of a list that select_units ranks at most, and query heads of a list.
inline constexpr uint32_t kMaxPageUnits = 8192;
inline constexpr int kMaxUnitHeads = 8;

}  // namespace winnow::device
