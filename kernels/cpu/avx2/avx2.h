#pragma once
#include "kernels/cpu/decode_attention.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/matmul.h"
#include "kernels/kernel_table.h"

// AVX2, FMA and F16C: the kernels of decode. Prefill attention and the rest are portable.

namespace winnow::avx2 {

extern const MatmulMicro kMatmul;
void Unpack(const QuantizedTile& tile, float* weights);
void QuantizedPanel(const QuantizedPanelTask& task);  // at most kQuantizedRows rows
inline constexpr int kQuantizedRows = 3;
void DecodeAttentionTile(const DecodeTile& tile);
extern const DeltaMicro kDelta;
void KeyScore(const KeyScoreParams& params);

}  // namespace winnow::avx2
