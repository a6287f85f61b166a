#pragma once
#include "kernels/device/params/prefill_attention.h"

namespace winnow::device {

// Over rows whose keys are the values, too.
void PrefillAttentionLatent(Stream stream, const PrefillAttentionParams& params);

}  // namespace winnow::device
