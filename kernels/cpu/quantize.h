#pragma once
#include <cstdint>

namespace winnow {

// Symmetric int8: values[i] = round(x[i] / scale) with scale = max|x| / 127, which is returned; zeros behind n up to a
// multiple of eight. If max|x| < 2^-100 the values and the scale are 0; if an element is not finite the values are 0
// and the scale is NaN. One compiled function for all instruction sets, so that they agree on every bit.
float QuantizeInt8(const float* x, int n, int8_t* values);

// int4 values of a key and their scale, as params.h says of index tiles; n is at most kMaxScoredHeadDim; otherwise as
// QuantizeInt8.
float QuantizeInt4(const float* x, int n, int8_t* values);

}  // namespace winnow
