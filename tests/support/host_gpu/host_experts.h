#pragma once
#include "kernels/cuda/experts/experts.h"

namespace winnow::test {

float Activate(cuda::GatedActivation activation, float gate, float up);

// The experts of a sparse layer, plainly: what kernels/cuda/experts has to give.
cuda::ExpertKernels HostExpertKernels();

}  // namespace winnow::test
