#pragma once
#include "kernels/device/params/attention.h"

namespace winnow::device {

// AttentionKernels over rows whose keys are the values, too.
size_t LatentScratchBytes(const DecodeAttentionParams& params);
void LatentDecodeAttention(Stream stream, const DecodeAttentionParams& params);

}  // namespace winnow::device
