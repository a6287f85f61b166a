#pragma once
#include <cstdint>

#include "kernels/params/matmul.h"

namespace winnow {

// One panel of a quantised matrix, row-major: at most kPanel outputs.
struct QuantizedPanelParams {
  const uint8_t* codes = nullptr;  // [num_outputs, in_features], a byte each
  const float* scales = nullptr;   // [num_outputs, groups]
  const int16_t* zeros = nullptr;  // [num_outputs, groups]; not read for kF8
  // [num_outputs, groups], of a matrix that is mxfp4 in the place of scales and zeros.
  const uint8_t* exponents = nullptr;
  int num_outputs = 0;
  PackedMatrix matrix;     // its shape, dtype and group size
  void* packed = nullptr;  // PanelBytes, 64-byte aligned
};

// Lays the codes out as params.h says of PackedMatrix. What is padded has codes and scales of zero.
void PackQuantizedPanel(const QuantizedPanelParams& params);

}  // namespace winnow
