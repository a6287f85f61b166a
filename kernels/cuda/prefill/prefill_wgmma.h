#pragma once
#include "kernels/device/params/prefill_attention.h"

namespace winnow::device {

// Prefill attention by Hopper's warpgroup matrix instructions: compute capability 9.0 only.
void PrefillAttentionWgmma(Stream stream, const PrefillAttentionParams& params);

}  // namespace winnow::device
