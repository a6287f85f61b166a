#pragma once
#include <vector>

#include "common/base/status.h"
#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace winnow {

// The rows of a kStepPlan frame, each a sequence of its own. INVALID_ARGUMENT when the frame carries fewer than it says
// or names a sequence twice.
absl::Status ReadPlanRows(const ReceivedFrame& frame, std::vector<wire::PlanRow>* rows);

}  // namespace winnow
