#pragma once
#include <bit>
#include <cstdint>

namespace winnow {
namespace {

// Larger floats have larger keys; -0 and +0 have one key, as they compare equal. Not for NaN.
inline uint32_t OrderedKey(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// The value of a key; NaN where no value has it.
inline float FromOrderedKey(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

}  // namespace
}  // namespace winnow
