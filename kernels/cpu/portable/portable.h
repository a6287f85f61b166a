#pragma once
#include "kernels/cpu/decode_attention.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/prefill_attention.h"
#include "kernels/kernel_table.h"

// Plain loops: the reference, and the fallback for shapes that the vector versions leave out.

namespace winnow::portable {

void TransformRow(const MatmulParams& params, int row, void* out);
extern const MatmulMicro kMatmul;
void DecodeAttentionTile(const DecodeTile& tile);
extern const DeltaMicro kDelta;
extern const PrefillMicro kPrefill;
void PrefixAttention(const PrefixAttentionParams& params);
void KeyScore(const KeyScoreParams& params);
void ExpRun(float* values, int n, float* max, float* sum);  // see key_softmax.h
void SoftmaxSum(const SoftmaxSumParams& params);
void TopK(const TopKParams& params);

}  // namespace winnow::portable
