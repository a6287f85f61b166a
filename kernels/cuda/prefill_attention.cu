#include "kernels/cuda/prefill_attention.h"

namespace winnow::cuda {

const PrefillAttentionKernels kPrefillAttentionKernels = {};

}  // namespace winnow::cuda
