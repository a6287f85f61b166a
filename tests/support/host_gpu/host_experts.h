#pragma once
#include "kernels/cuda/experts/experts.h"

namespace winnow::test {

// The experts of a sparse layer, plainly: what kernels/cuda/experts has to give.
cuda::ExpertKernels HostExpertKernels();

}  // namespace winnow::test
