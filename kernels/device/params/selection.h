#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"
#include "common/base/page_groups.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Selection on a cache rank's GPU. A list is one (sequence, kv head) of the layer at hand; every launch takes them all.
// Positions below num_keys of a list are scored, of those [first, last) may be selected.
struct SelectionList {
  uint32_t first_block;  // in `blocks`: block i of the list is blocks[first_block + i]
  uint32_t num_keys;     // that are scored (captured mass counts them all)
  uint32_t first;        // sinks end here
  uint32_t last;         // the recent window begins here
  uint32_t budget;       // rows to select, <= max_budget
  uint32_t query;        // row of `queries`: the group's queries are [query * group, (query + 1) * group)
};

// Keys as stored: block b's key j lies at keys + b * block_stride + j * key_stride (bytes), 32 keys to a block. The K
// halves of stored rows (key_stride = row bytes) and a copy of the keys alone (key_stride = key bytes) both fit, and so
// do the keys of rows of int8 with scales apart (Int8Slots), which have the scores of the CPU backend, bit for bit.
struct KeyStore {
  const void* keys = nullptr;
  int64_t block_stride = 0;
  int64_t key_stride = 0;
  const float* scales = nullptr;  // [num_blocks, 32], scale_stride floats apart; kF8 and kI8
  uint32_t scale_stride = 1;
  Dtype dtype = Dtype::kBf16;  // kBf16, kF8 or kI8
};

// Scores of a page: the bound max(q,0).max + min(q,0).min (Quest, arXiv:2406.10774) or the cuboid mean's dot product.
struct PageStore {
  const void* bounds = nullptr;  // [num_blocks][32 / page_tokens][2 * head_dim] bf16: max | min, in the block's order
  int page_tokens = 16;          // 8, 16 or 32
  int64_t block_stride = 0;      // bytes from a block's bounds to the next one's; 0: they lie without gaps
  // Bounds of groups of kGroupPages pages; null: none are kept. Of each GroupBlocks(page_tokens) blocks of `blocks`,
  // [2 * head_dim] bf16 as above, so that a list's first_block is a multiple of that. Behind the last one there is room
  // for kGroupPages - 1 more, which are read and do not count.
  const void* group_bounds = nullptr;
};
// Of the bounds of a block's pages, in bytes; and from theirs to the next block's.
constexpr int64_t PageBlockBytes(int page_tokens, int head_dim) {
  return int64_t{4} * head_dim * (static_cast<int>(kBlockTokens) / page_tokens);
}
constexpr int64_t PageBlockStride(int64_t block_stride, int page_tokens, int head_dim) {
  return block_stride == 0 ? PageBlockBytes(page_tokens, head_dim) : block_stride;
}
constexpr uint32_t GroupBlocks(uint32_t page_tokens) {
  return kGroupPages * page_tokens / kBlockTokens;
}

enum class Aggregation : uint8_t { kSoftmaxSum, kMax, kMean };  // over the queries of a group

struct SelectParams {
  const SelectionList* lists = nullptr;  // [num_lists] device
  int num_lists = 0;
  const uint32_t* blocks = nullptr;  // device
  KeyStore keys;
  PageStore pages;  // page scorers and two-stage
  int head_dim = 0;
  int group = 0;                   // 1..8
  const float* queries = nullptr;  // rotated, not scaled
  float scale = 0;
  Aggregation aggregation = Aggregation::kSoftmaxSum;
  uint32_t max_keys = 0;  // greatest num_keys this launch may meet: fixes the grid, never the result
  uint32_t max_budget = 0;
  // Most rows of a list that are attended without being selected: sinks and recent window. Two-stage selections of
  // lists that promise so take one launch; 0 promises nothing.
  uint32_t max_kept = 0;
  // Two-stage: the first stage keeps pages of so many of a list's budgets, and at least of so many rows. Both 0: every
  // key is scored.
  uint32_t candidate_factor = 0;
  uint32_t min_candidates = 0;
  uint32_t score_all_below = 0;  // two-stage: every key is scored of lists with fewer selectable ones
  // Two-stage, where pages have group_bounds: rows of groups whose pages are scored (page_groups.h); 0: all. Not with
  // captured_mass.
  uint32_t group_candidates = 0;
  bool none_below = false;  // none of the launch has fewer: speed alone
  // Policy mass: the fewest rows that bring what sinks and window hold to this share of the softmax over the scored
  // keys, averaged over the group, and at most budget; 0: top-k.
  float min_mass = 0;
  bool takes_all_that_fit = false;  // policy mass: all selectable rows of lists whose budget they fit
  uint32_t* selected = nullptr;     // [num_lists, max_budget] positions, ascending
  uint32_t* counts = nullptr;       // [num_lists]
  // [num_lists] of sinks, selection and recent window; may be null. Where not every key is scored, a lower bound: what
  // is not scored counts as its pages' bounds.
  float* captured_mass = nullptr;
  // The launch before writes neither lists nor blocks, nor bounds of pages below any list's `last`: two-stage
  // selections in one launch begin to read those while it still runs.
  bool settled = false;
  void* scratch = nullptr;  // select_scratch_bytes, 256-byte aligned
};

constexpr bool IsTwoStage(const SelectParams& params) {
  return params.candidate_factor > 0 || params.min_candidates > 0;
}
// Two-stage: rows of pages that the first stage keeps of a list of that budget.
constexpr uint32_t CandidateRows(const SelectParams& params, uint32_t budget) {
  constexpr uint64_t kMost = 1u << 30;  // of keys there are fewer
  const uint64_t rows = uint64_t{budget} * params.candidate_factor;
  const uint64_t most = rows > params.min_candidates ? rows : params.min_candidates;
  return static_cast<uint32_t>(most < kMost ? most : kMost);
}

// Two-stage: the groups of a list's pages, which are not looked at where the list is scored whole.
constexpr PageGroups GroupsOf(const SelectParams& params, const SelectionList& list) {
  return PageGroupsOf(static_cast<uint32_t>(params.pages.page_tokens),
                      params.pages.group_bounds == nullptr ? 0 : params.group_candidates,
                      CandidateRows(params, list.budget), list.first, list.last);
}
// Whether lists of a launch may leave out groups.
constexpr bool LeavesOutGroups(const SelectParams& params) {
  return params.group_candidates > 0 && params.pages.group_bounds != nullptr;
}
// Most rows of a list, without those of the groups that it leaves out, that a two-stage selection can mark.
inline constexpr uint32_t kMostMarkedKeys = 1u << 20;
// Most keys of a list that are left when group_candidates, which are not 0, leave out groups, where max_kept is
// promised.
constexpr uint32_t MostKeysOfGroups(const SelectParams& params) {
  if (params.max_kept == 0) return params.max_keys;
  const PageGroups groups = PageGroupsOf(static_cast<uint32_t>(params.pages.page_tokens), params.group_candidates,
                                         CandidateRows(params, params.max_budget), 0, 0);
  const uint64_t most = (uint64_t{groups.kept} + params.max_kept / groups.rows + 4) * groups.rows;
  return most < params.max_keys ? static_cast<uint32_t>(most) : params.max_keys;
}
constexpr uint32_t MostGroupedKeys(const SelectParams& params) {
  return LeavesOutGroups(params) ? MostKeysOfGroups(params) : params.max_keys;
}

// A list's result depends on the list alone: not on the others of the launch, nor on max_keys and max_budget. Pointers
// of the stores are aligned to 16 bytes, and so are key_stride and block_stride.
//
// Two-stage: where a list has more groups of pages than may stay, those of the greatest bound; of the pages of these,
// or of all, pages by the greatest bound of the group's queries, the fewest that hold CandidateRows selectable
// rows; scored are their keys, the sinks and the window, in granules of 16 rows.
struct SelectionKernels {
  size_t (*select_scratch_bytes)(const SelectParams&);
  void (*select)(Stream, const SelectParams&);  // every key, or two-stage
  // Pages alone (Quest): the fewest that hold the budget, the least important one of them giving its first rows.
  void (*select_pages)(Stream, const SelectParams&);
  // The k largest of values[list][first .. last), ties to the lower index, ascending. No NaNs. Needs no scratch.
  void (*top_k)(Stream, const float* values, int64_t stride, const SelectionList* lists, int num_lists,
                uint32_t max_keys, uint32_t max_budget, uint32_t* selected, uint32_t* counts, void* scratch);
  // scores[list][query of the group][key], for tests and benches of scoring alone.
  void (*score)(Stream, const SelectParams&, float* scores, int64_t stride);
  void (*score_pages)(Stream, const SelectParams&, float* scores, int64_t stride);
};
extern const SelectionKernels kSelectionKernels;

}  // namespace winnow::device
