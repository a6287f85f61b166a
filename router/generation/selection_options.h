#pragma once
#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "router/generation/served_model.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// The selection that a gRPC request asks for, by ResolveSelection's rules. Errors begin with the proto's field:
// "selection.budget_tokens: ...".
absl::StatusOr<SelectionSpec> SelectionOf(const v1::SelectionOptions& options, const ServedModel& model);

}  // namespace winnow
