#pragma once
#include "kernels/cuda/prefill/prefill_attention.h"

namespace winnow::cuda {

// Over rows whose keys are the values, too.
void PrefillAttentionLatent(Stream stream, const PrefillAttentionParams& params);

}  // namespace winnow::cuda
