#pragma once
#include <algorithm>
#include <cstdint>

#include "cache_rank/index/index_layout.h"
#include "cache_rank/select/scorer/scratch_buffer.h"

namespace winnow {

// Pages are scored as keys are (token_scorer.h), by their pseudo-keys [hi | lo] of dimension 2 * head_dim and
// pseudo-queries [max(q, 0) | min(q, 0)]: writes those of queries [num_queries, head_dim] to [num_queries, 2 *
// head_dim]. What is not a number stays that.
void PageQueries(const float* queries, int num_queries, int head_dim, float* page_queries);

// Units of consecutive rows that are selected as a whole, of which only the rows in [first_row, last_row) may be: the
// pages of an index, or LServe's physical pages. The first and last unit may be clipped by that range.
struct PageUnits {
  const float* importance = nullptr;  // [end()]; never NaN
  uint32_t unit_tokens = 0;
  uint32_t first_row = 0;  // end of the sinks
  uint32_t last_row = 0;   // start of the recent window

  uint32_t begin() const { return first_row / unit_tokens; }
  uint32_t end() const { return last_row > first_row ? (last_row + unit_tokens - 1) / unit_tokens : begin(); }
  uint32_t RowsBegin(uint32_t unit) const { return std::max(unit * unit_tokens, first_row); }
  uint32_t RowsEnd(uint32_t unit) const { return std::min((unit + 1) * unit_tokens, last_row); }
  uint32_t Rows(uint32_t unit) const { return RowsEnd(unit) - RowsBegin(unit); }
};

// Units of `unit_tokens` from the importance of pages of page_tokens, a divisor of it: the largest of its pages' that
// lie below last_row (LServe, arXiv:2502.14866, section 3.5.2: hierarchical paging). A page that reaches into the
// recent window has no importance that depends on selectable rows alone; the unit that has no other page counts as the
// most important one, as if the window were wider. `importance` [num pages below last_row] is read, [end()] written to
// `units`, which may be the same with page_tokens == unit_tokens.
PageUnits ReducePages(const float* importance, uint32_t page_tokens, uint32_t unit_tokens, uint32_t first_row,
                      uint32_t last_row, float* units);

}  // namespace winnow
