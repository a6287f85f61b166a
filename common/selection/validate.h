#pragma once
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// INVALID_ARGUMENT names the field that is out of its range (SpecErrorField), or the fields that exclude one another;
// UNIMPLEMENTED says what this version does not do yet.
absl::Status ValidateSelection(const SelectionSpec& spec);

// INVALID_ARGUMENT when a model of that shape cannot be served so: budgets by head that are another model's, lists per
// query head of groups that are too large.
absl::Status CheckFitsModel(const SelectionSpec& spec, const KvLayout& layout);

}  // namespace winnow
