#pragma once
#include <cstdint>
#include <cstring>

namespace winnow {

// To nearest, ties to even; of numbers.
inline uint16_t RoundToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace winnow
