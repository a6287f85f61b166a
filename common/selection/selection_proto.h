#pragma once
#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "winnow/v1/selection.pb.h"

namespace winnow {

// Specifications as they travel between processes: every field is set.
v1::SelectionSpec ToProto(const SelectionSpec& spec);
// INVALID_ARGUMENT names the field that is missing, unknown to this version or out of its range.
absl::StatusOr<SelectionSpec> FromProto(const v1::SelectionSpec& proto);

}  // namespace winnow
