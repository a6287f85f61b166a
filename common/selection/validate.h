#pragma once
#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// INVALID_ARGUMENT names the field that is out of its range (SpecErrorField), or the fields that exclude one another;
// UNIMPLEMENTED says what this version does not do yet.
absl::Status ValidateSelection(const SelectionSpec& spec);

}  // namespace winnow
