#pragma once
#include <cstdint>

// Elements of a key or a value as codes of 8 bits with one scale, operation by operation as QuantizeInt8
// (kernels/cpu/quantize.cc) makes them, so that both backends agree on every bit.

namespace winnow::device {

// Magnitudes order as their bits do, with what is not finite on top.
template <int kCount>
__device__ uint32_t MaxBits(const float (&x)[kCount]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffu);
  return bits;
}

__device__ inline uint32_t WarpMaxBits(uint32_t bits) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, distance));
  return bits;
}

template <int kCount>
struct Int8Codes {
  int8_t at[kCount];

  template <typename Word>
  __device__ Word As() const {
    static_assert(sizeof(Word) == kCount);
    Word word = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) word |= static_cast<Word>(static_cast<Word>(static_cast<uint8_t>(at[i])) << 8 * i);
    return word;
  }
};

// What elements are divided by: a 127th of the largest magnitude, whose bits are given. Of less than 2^-100 codes and
// scale are zeros; of what is not finite codes are zeros, and the scale is NaN.
struct Int8Step {
  float inverse, scale;
  bool is_zero;

  __device__ explicit Int8Step(uint32_t max_bits) {
    const bool finite = max_bits < 0x7f800000u;
    const float most = __uint_as_float(max_bits);
    is_zero = !finite || most < 0x1p-100f;
    inverse = is_zero ? 0 : __fdiv_rn(127, most);
    scale = is_zero ? (finite ? 0 : __uint_as_float(0x7fc00000u)) : __fdiv_rn(most, 127);
  }

  template <int kCount>
  __device__ Int8Codes<kCount> Quantize(const float (&x)[kCount]) const {
    constexpr float kRoundsToInteger = 0x1.8p23f;
    Int8Codes<kCount> codes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float rounded = __fadd_rn(__fmul_rn(x[i], inverse), kRoundsToInteger);
      codes.at[i] = is_zero ? 0 : static_cast<int8_t>(__float_as_uint(rounded) & 0xff);
    }
    return codes;
  }
};

}  // namespace winnow::device
