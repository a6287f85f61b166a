#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Sparse layers of many shapes: routing, and the products of the experts that rows are routed to, against f64; and that
// a row's bits do not depend on the others.
void CheckExperts(GpuContext& gpu);

}  // namespace winnow
