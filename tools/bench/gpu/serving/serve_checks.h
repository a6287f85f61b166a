#pragma once
#include <string>

#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// False, with a note, where the program or the demo model is not there. Clusters are started from it afterwards.
bool CanServeDemo(GpuContext& gpu);

// Dense answers of a cluster whose inference rank has that --device, against the golden data, alone and in a batch.
void CheckServedDense(GpuContext& gpu, const std::string& name, const std::string& device);

}  // namespace winnow
