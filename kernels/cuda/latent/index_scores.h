#pragma once
#include "kernels/cuda/latent/latent.h"

namespace winnow::cuda {

// LatentKernels::index_scores.
void IndexScores(Stream stream, const IndexScoreParams& params);

}  // namespace winnow::cuda
