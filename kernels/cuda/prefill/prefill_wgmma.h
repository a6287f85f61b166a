#pragma once
#include "kernels/cuda/prefill/prefill_attention.h"

namespace winnow::cuda {

// Prefill attention by Hopper's warpgroup matrix instructions: compute capability 9.0 only.
void PrefillAttentionWgmma(Stream stream, const PrefillAttentionParams& params);

}  // namespace winnow::cuda
