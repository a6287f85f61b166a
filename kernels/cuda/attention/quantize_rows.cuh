#pragma once
#include "common/base/dtype.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// AttentionKernels::quantize_rows.
void QuantizeRows(Stream stream, const void* rows, int num_rows, int head_dim, Dtype to, void* out, void* scales);

}  // namespace winnow::device
