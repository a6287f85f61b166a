#pragma once
#include <bit>
#include <cstdint>
#include <limits>

namespace winnow {

// The value of an e4m3 code of the variant without infinities: both codes with all seven bits set are NaN.
constexpr float Fp8ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t magnitude = code & 0x7f;
  if (magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude < 8) {  // subnormal: magnitude * 2^-9 is exact
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

}  // namespace winnow
