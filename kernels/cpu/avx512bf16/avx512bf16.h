#pragma once
#include "kernels/cpu/matmul.h"

// Prefill matmul and key scores with vdpbf16ps, for cores that run it at the rate of FMA (AMD since Zen 4): twice the
// products. All else is avx512's.

namespace winnow::avx512bf16 {

extern const MatmulMicro kMatmul;
void KeyScore(const KeyScoreParams& params);
void KeySoftmax(const KeySoftmaxParams& params);

}  // namespace winnow::avx512bf16
