#pragma once
#include <array>
#include <cstdint>

namespace winnow {

// Philox4x32-10, a counter-based random number generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): the same key and counter give the same numbers on any machine, at any time, in any batch.
inline std::array<uint32_t, 4> Philox4x32(uint64_t key, std::array<uint32_t, 4> counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits, a pure function of (seed, sample, token index).
inline double PhiloxUniform(uint64_t seed, uint32_t sample_index, uint32_t token_index) {
  const auto bits = Philox4x32(seed, {token_index, sample_index, 0, 0});
  return static_cast<double>((uint64_t{bits[0]} << 21) | (bits[1] >> 11)) * 0x1p-53;
}

}  // namespace winnow
