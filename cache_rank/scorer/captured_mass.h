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

// Share of the exact softmax over rows [0, position] that A holds, averaged over the group's query heads. `scores` are
// those of the real, rotated queries; `softmax` is scratch of position + 1 elements.
float CapturedMass(const KernelTable& kernels, Scores scores, int num_queries, const AttendedSet& attended,
                   float* softmax);

}  // namespace winnow
