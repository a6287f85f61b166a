#pragma once
#include <cstdint>

namespace winnow::device {

// Philox4x32-10 (Salmon et al., SC 2011), the same numbers as model/philox.h.
__device__ inline uint4 Philox4x32(uint64_t key, uint4 counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ k0, low1, high0 ^ counter.w ^ k1, low0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits.
__device__ inline double PhiloxUniform(uint64_t seed, uint32_t sample_index, uint32_t token_index) {
  const uint4 bits = Philox4x32(seed, make_uint4(token_index, sample_index, 0, 0));
  return static_cast<double>((uint64_t{bits.x} << 21) | (bits.y >> 11)) * 0x1p-53;
}

}  // namespace winnow::device
