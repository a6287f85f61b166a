#pragma once
#include "kernels/cpu/decode_attention.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/prefill_attention.h"
#include "kernels/kernel_table.h"

// AVX-512 F, BW, VL and DQ; all arithmetic in f32 FMA.

namespace winnow::avx512 {

extern const MatmulMicro kMatmul;
void Unpack(const QuantizedTile& tile, float* weights);
void QuantizedPanel(const QuantizedPanelTask& task);  // at most kQuantizedRows rows
inline constexpr int kQuantizedRows = 4;
void DecodeAttentionTile(const DecodeTile& tile);
extern const DeltaMicro kDelta;
extern const PrefillMicro kPrefill;
void PrefixAttention(const PrefixAttentionParams& params);
void KeyScore(const KeyScoreParams& params);
void KeySoftmax(const KeySoftmaxParams& params);
void ScoreSoftmax(const ScoreSoftmaxParams& params);
void SoftmaxSum(const SoftmaxSumParams& params);
void TopK(const TopKParams& params);

// int8 and int4 tiles on any machine, and on those with VNNI: the same bits, a quarter of the work.
void KeyScoreInt8(const KeyScoreParams& params);
void KeyScoreInt4(const KeyScoreParams& params);
void KeyScoreInt8Vnni(const KeyScoreParams& params);
void KeyScoreInt4Vnni(const KeyScoreParams& params);
void KeySoftmaxInt8Vnni(const KeySoftmaxParams& params);
void KeySoftmaxInt4Vnni(const KeySoftmaxParams& params);

}  // namespace winnow::avx512
