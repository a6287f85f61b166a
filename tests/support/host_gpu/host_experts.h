#pragma once
#include "kernels/device/params/experts.h"

namespace winnow::test {

float Activate(device::GatedActivation activation, float gate, float up);

// The experts of a sparse layer, plainly: what kernels/cuda/experts has to give.
device::ExpertKernels HostExpertKernels();

}  // namespace winnow::test
