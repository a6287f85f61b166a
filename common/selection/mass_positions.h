#pragma once
#include <cstdint>

#include "common/selection/selection_spec.h"

namespace winnow {

inline constexpr uint32_t kMassInterval = 16;

// True at positions whose captured mass is measured: the first `interval` after the prompt, so that short answers have
// a figure, and then those p with p % interval == 0, as measuring with another query than the selecting one costs as
// much again as selecting. Depends on the position alone, so that what is reported of a sequence does not depend on how
// it was served; positions that share a selection are measured by one of them. `interval` >= 1.
constexpr bool MeasuresMass(const SelectionSpec& spec, uint32_t position, uint32_t prompt_tokens,
                            uint32_t interval = kMassInterval) {
  return position % interval < spec.reuse_interval || position < prompt_tokens + interval;
}

// The same for a row of a batch that is decoded and measured in one step: streams of one length would all be measured
// in the same step, which would take several times as long as those between, so each row has its turn. Of the first
// `interval` positions the first is measured, and every fourth by turns. For specifications whose positions share no
// selection.
constexpr bool MeasuresMassOfRow(uint32_t position, uint32_t prompt_tokens, uint32_t row,
                                 uint32_t interval = kMassInterval) {
  const uint32_t at = position + row;
  return at % interval == 0 || position == prompt_tokens || (position < prompt_tokens + interval && at % 4 == 0);
}

}  // namespace winnow
