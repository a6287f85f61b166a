#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// DeviceIndexSelector against the definition: sequences whose rows lie in host memory, over positions and attachments.
void CheckBatchSelector(GpuContext& gpu);

}  // namespace winnow
