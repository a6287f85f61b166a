#include "kernels/cuda/attention.h"

namespace winnow::cuda {

const AttentionKernels kAttentionKernels = {};

}  // namespace winnow::cuda
