#pragma once
#include <cstdint>
#include <span>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// Layers that attend to a sliding window and nothing else have nothing to select: their heads stream
// (common/selection/attended_set.h), with a recent window that holds the sliding one, so that no rows of them are asked
// for and old ones are kept nowhere. `windows` is by layer, as ModelConfig has them: 0 for layers that attend to
// everything, empty where all do.

// The specification for such a model: the budgets of those layers' heads are 0, and recent_tokens, which all layers
// share, is at least the widest window. A specification that attends to everything stays as it is.
SelectionSpec WithWindowLayers(SelectionSpec spec, std::span<const uint32_t> windows, int num_kv_heads);

// INVALID_ARGUMENT where that changes the specification: some position's window would not be attended.
absl::Status CheckKeepsWindows(const SelectionSpec& spec, std::span<const uint32_t> windows, int num_kv_heads);

}  // namespace winnow
