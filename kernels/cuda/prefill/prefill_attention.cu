#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/prefill/prefill_latent.h"
#include "kernels/cuda/prefill/prefill_mma.h"
#include "kernels/cuda/prefill/prefill_wgmma.h"
#include "kernels/cuda/prefill/widen_rows.h"
#include "kernels/device/params/prefill_attention.h"

namespace winnow::device {
namespace {

void PrefillAttention(Stream stream, const PrefillAttentionParams& params) {
  if (params.num_queries == 0) return;
  if (params.row.value_is_key) return PrefillAttentionLatent(stream, params);
  if (ComputeMajor() == 9 && params.head_dim >= 64) {
    PrefillAttentionWgmma(stream, params);
  } else {
    PrefillAttentionMma(stream, params);
  }
}

}  // namespace

const PrefillAttentionKernels kPrefillAttentionKernels = {
    .prefill_attention = PrefillAttention, .prefill_attention_any_gpu = PrefillAttentionMma, .widen_rows = WidenRows};

}  // namespace winnow::device
