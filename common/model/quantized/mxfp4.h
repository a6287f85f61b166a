#pragma once
#include <cstdint>
#include <span>

namespace winnow {

// MXFP4: blocks of 32 e2m1 values that share a power of two. A byte holds two values, the first in its low bits; a
// scale is the exponent of two plus 127, and 255 is NaN.
inline constexpr size_t kMxfp4Block = 32;

// The exponent of a scale that is no number.
inline constexpr uint8_t kMxfp4Nan = 255;

// Writes the values of blocks [scales.size()][16 bytes] to `out`, 32 for each.
void Mxfp4ToF32(std::span<const uint8_t> blocks, std::span<const uint8_t> scales, float* out);

}  // namespace winnow
