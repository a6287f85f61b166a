#pragma once
#include <vector>

#include "cmd/doctor/finding.h"

namespace winnow {

// The plugin with the kernels, the GPUs that it can use, which of them reach each other's memory, and the versions of
// driver, runtime and NCCL; or the reason why there are none. Loads the plugin and opens every GPU for a moment.
std::vector<Finding> GpuFindings();

}  // namespace winnow
