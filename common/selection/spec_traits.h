#pragma once
#include <algorithm>

#include "common/selection/selection_spec.h"

namespace winnow {

// True where pages are selected whole, by what is kept of them, and no key decides alone.
inline bool SelectsWholePages(const SelectionSpec& spec) {
  return spec.scorer != Scorer::kToken && spec.scorer != Scorer::kTwoStage;
}

// True where some heads attend to sinks and recent rows alone.
inline bool HasStreamingHeads(const SelectionSpec& spec) {
  return std::any_of(spec.head_budgets.begin(), spec.head_budgets.end(), [](uint32_t budget) { return budget == 0; });
}

}  // namespace winnow
