#pragma once
#include "kernels/cuda/attention/attention.h"

namespace winnow::cuda {

// AttentionKernels over rows whose keys are the values, too.
size_t LatentScratchBytes(const DecodeAttentionParams& params);
void LatentDecodeAttention(Stream stream, const DecodeAttentionParams& params);

}  // namespace winnow::cuda
