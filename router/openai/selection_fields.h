#pragma once
#include "common/base/status.h"
#include "router/openai/json_document.h"
#include "router/served_model.h"

namespace winnow {

// The request's "winnow" object: {"selection": preset name, "budget": tokens, "min_captured_mass": 0}; the server's
// default where it is silent. A preset name replaces the whole specification, keeping the served budget limit. Unknown
// keys are errors.
absl::StatusOr<SelectionSpec> ParseSelectionFields(const Json& body, const ServedModel& model);

}  // namespace winnow
