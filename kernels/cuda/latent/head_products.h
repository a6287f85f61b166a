#pragma once
#include "kernels/device/params/latent.h"

namespace winnow::device {

// LatentKernels::head_products.
void HeadProducts(Stream stream, const HeadProductsParams& params);

}  // namespace winnow::device
