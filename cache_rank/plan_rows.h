#pragma once
#include <vector>

#include "common/base/status.h"
#include "common/transport/transport.h"
#include "common/transport/wire.h"

namespace winnow {

// The rows of a kStepPlan frame, each a sequence of its own. INVALID_ARGUMENT when the frame carries fewer than it says
// or names a sequence twice.
absl::Status ReadPlanRows(const ReceivedFrame& frame, std::vector<wire::PlanRow>* rows);

}  // namespace winnow
