#pragma once
#include "kernels/device/params/matmul.h"

namespace winnow::device {

// Row-major bf16 [out, in] to `matrix.data` and `matrix.scales` in any form, rounded to the nearest code.
void PackRounded(Stream stream, const void* row_major, const DeviceMatrix& matrix);
// Codes of any form.
void PackCodes(Stream stream, const MatrixCodes& codes, const DeviceMatrix& matrix);
// Back to row-major bf16 in any form, each weight rounded once.
void UnpackMatrix(Stream stream, const DeviceMatrix& matrix, void* row_major);

}  // namespace winnow::device
