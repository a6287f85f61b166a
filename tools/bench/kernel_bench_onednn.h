#pragma once
#include "common/base/dtype.h"

namespace winnow {

// Seconds of a bare oneDNN matmul [m, k] x [k, n] -> f32 with weights packed by oneDNN; the best of several runs.
double OneDnnMatmulSeconds(int m, int n, int k, Dtype dtype, int num_threads);

}  // namespace winnow
