#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/prefill_mma.h"

namespace winnow::cuda {

const PrefillAttentionKernels kPrefillAttentionKernels = {.prefill_attention = PrefillAttentionMma};

}  // namespace winnow::cuda
