#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Whole plans as graphs that wait for another stream: they do what the same plans do one by one, and end when they are
// aborted.
void CheckSelectGraphs(GpuContext& gpu);

}  // namespace winnow
