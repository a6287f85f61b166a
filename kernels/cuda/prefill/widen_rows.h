#pragma once
#include "kernels/device/params/prefill_attention.h"

namespace winnow::device {

// PrefillAttentionKernels::widen_rows.
void WidenRows(Stream stream, const WidenRowsParams& params);

}  // namespace winnow::device
