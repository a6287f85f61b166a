#pragma once
#include "kernels/cuda/prefill/prefill_attention.h"

namespace winnow::cuda {

// PrefillAttentionKernels::widen_rows.
void WidenRows(Stream stream, const WidenRowsParams& params);

}  // namespace winnow::cuda
