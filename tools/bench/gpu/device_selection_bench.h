#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Times of a cache rank's GPU at the shape of Qwen3-14B: what a layer takes from queries, or the residual, to the
// delta.
void BenchDeviceSelection(GpuContext& gpu);

}  // namespace winnow
