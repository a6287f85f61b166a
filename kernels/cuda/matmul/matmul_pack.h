#pragma once
#include "kernels/cuda/matmul/matmul.h"

namespace winnow::cuda {

// Row-major bf16 [out, in] to `matrix.data` and `matrix.scales`, dtype kF8.
void PackF8(Stream stream, const void* row_major, const DeviceMatrix& matrix);
// And back, scales applied.
void UnpackF8(Stream stream, const DeviceMatrix& matrix, void* row_major);

}  // namespace winnow::cuda
