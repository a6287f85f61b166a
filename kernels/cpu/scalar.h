#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/base/dtype.h"

// Scalar conversions. Everything in kernels/cpu that is included by files of several instruction sets has internal
// linkage, so that the linker never takes an AVX-512 copy of an inline function for a machine without it.

namespace winnow {
namespace {

inline float Bf16ToF32(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// Round to nearest even; NaN stays NaN.
inline uint16_t F32ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A float with the precision of bf16.
inline float RoundToBf16(float x) {
  return Bf16ToF32(F32ToBf16(x));
}

inline float F16ToF32(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t magnitude = x & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude < 0x400) {  // subnormal: magnitude * 2^-24 is exact
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

// Element i of an array of any dtype of CPUs but kI4, whose elements have no address.
inline float LoadAsF32(const void* data, Dtype dtype, size_t i) {
  switch (dtype) {
    case Dtype::kBf16:
      return Bf16ToF32(static_cast<const uint16_t*>(data)[i]);
    case Dtype::kF16:
      return F16ToF32(static_cast<const uint16_t*>(data)[i]);
    case Dtype::kI8:
      return static_cast<const int8_t*>(data)[i];
    case Dtype::kI4:
    case Dtype::kF8:
    case Dtype::kF32:
      break;
  }
  return static_cast<const float*>(data)[i];
}

}  // namespace
}  // namespace winnow
