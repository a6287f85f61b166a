#pragma once
#include <bit>
#include <cstdint>
#include <random>
#include <vector>

namespace winnow {

inline uint16_t Bf16Bits(float x) {  // finite, to nearest even
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Roughly normal, of a standard deviation of about 0.58.
inline float Random(std::mt19937_64& random) {
  const uint64_t bits = random();
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) / 65536 - 0.5f;
  return sum;
}
inline std::vector<uint16_t> RandomBf16(std::mt19937_64& random, size_t count, float factor) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = Bf16Bits(factor * Random(random));
  return values;
}

}  // namespace winnow
