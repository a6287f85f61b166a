#pragma once
#include "kernels/cpu/decode_attention.h"
#include "kernels/cpu/matmul.h"
#include "kernels/kernel_table.h"

// AVX2 and FMA: the kernels of decode. Prefill attention and the rest are portable.

namespace winnow::avx2 {

extern const MatmulMicro kMatmul;
void DecodeAttentionTile(const DecodeTile& tile);
void KeyScore(const KeyScoreParams& params);

}  // namespace winnow::avx2
