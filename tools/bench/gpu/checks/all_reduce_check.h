#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Terms of a tensor-parallel group, whose ranks one GPU plays in turn: what every rank gets, bit for bit, from
// products, sums and norms launched one by one; that places are left as zeros; and that waits end.
void CheckAllReduce(GpuContext& gpu);

}  // namespace winnow
