#pragma once
#include "kernels/device/params/latent.h"

namespace winnow::test {

device::LatentKernels HostLatentKernels();

}  // namespace winnow::test
