#pragma once
#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// INVALID_ARGUMENT names the field that is out of its range, or the fields that exclude one another.
absl::Status ValidateSelection(const SelectionSpec& spec);

}  // namespace winnow
