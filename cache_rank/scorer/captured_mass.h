#pragma once
#include <cstdint>
#include <span>

#include "cache_rank/scorer/token_scorer.h"

namespace winnow {

// A(p, l, h) = [0, sink_tokens) + selected + [recent_start, position].
struct AttendedSet {
  uint32_t sink_tokens = 0;
  std::span<const uint32_t> selected;  // ascending, within [sink_tokens, recent_start)
  uint32_t recent_start = 0;
  uint32_t position = 0;
};

// Share of the exact softmax that A holds, averaged over the group's query heads. `softmaxes` are those of the real,
// rotated queries over rows [0, position], or over [0, position) with `own_scores` [num_queries] those of row
// `position`, for a selection in which that row had no say.
float CapturedMass(const Softmaxes& softmaxes, const float* own_scores, const AttendedSet& attended);

}  // namespace winnow
