#pragma once
#include "kernels/device/params/prefill_attention.h"

namespace winnow::device {

// Prefill attention by warp-wide matrix instructions: any GPU of compute capability 8.0 and more.
void PrefillAttentionMma(Stream stream, const PrefillAttentionParams& params);

}  // namespace winnow::device
