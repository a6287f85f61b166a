#pragma once
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// INVALID_ARGUMENT names the field that is out of its range (SpecErrorField), or the fields that exclude one another;
// UNIMPLEMENTED says what this version does not do yet.
absl::Status ValidateSelection(const SelectionSpec& spec);

// INVALID_ARGUMENT when the budgets by head are not those of a model of that shape.
absl::Status CheckHeadBudgets(const SelectionSpec& spec, const KvLayout& layout);

}  // namespace winnow
