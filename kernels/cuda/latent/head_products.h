#pragma once
#include "kernels/cuda/latent/latent.h"

namespace winnow::cuda {

// LatentKernels::head_products.
void HeadProducts(Stream stream, const HeadProductsParams& params);

}  // namespace winnow::cuda
