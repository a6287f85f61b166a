#pragma once
#include "kernels/cuda/latent/latent.h"

namespace winnow::test {

cuda::LatentKernels HostLatentKernels();

}  // namespace winnow::test
