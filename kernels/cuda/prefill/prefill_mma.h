#pragma once
#include "kernels/cuda/prefill/prefill_attention.h"

namespace winnow::cuda {

// Prefill attention by warp-wide matrix instructions: any GPU of compute capability 8.0 and more.
void PrefillAttentionMma(Stream stream, const PrefillAttentionParams& params);

}  // namespace winnow::cuda
