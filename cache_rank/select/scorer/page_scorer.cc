#include "cache_rank/select/scorer/page_scorer.h"

#include <algorithm>
#include <limits>

namespace winnow {

void PageQueries(const float* queries, int num_queries, int head_dim, float* page_queries) {
  for (int i = 0; i < num_queries; ++i) {
    const float* q = queries + static_cast<int64_t>(i) * head_dim;
    float* out = page_queries + static_cast<int64_t>(i) * 2 * head_dim;
    for (int d = 0; d < head_dim; ++d) {
      out[d] = q[d] < 0 ? 0 : q[d];
      out[head_dim + d] = q[d] > 0 ? 0 : q[d];
    }
  }
}

PageUnits ReducePages(const float* importance, uint32_t page_tokens, uint32_t unit_tokens, uint32_t first_row,
                      uint32_t last_row, float* units) {
  const PageUnits reduced{units, unit_tokens, first_row, last_row};
  const uint32_t pages_per_unit = unit_tokens / page_tokens;
  const uint32_t pages = last_row / page_tokens;
  if (pages_per_unit == 1) {
    for (uint32_t unit = reduced.begin(); unit < reduced.end(); ++unit) {
      units[unit] = unit < pages ? importance[unit] : std::numeric_limits<float>::max();
    }
    return reduced;
  }
  for (uint32_t unit = reduced.begin(); unit < reduced.end(); ++unit) {
    const uint32_t first = unit * pages_per_unit, last = std::min(first + pages_per_unit, pages);
    units[unit] =
        first < last ? *std::max_element(importance + first, importance + last) : std::numeric_limits<float>::max();
  }
  return reduced;
}

}  // namespace winnow
