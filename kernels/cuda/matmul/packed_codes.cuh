#pragma once
#include <cstdint>

#include "kernels/cuda/matmul/packed_forms.cuh"

// Codes of packed matrices: where they lie, and how a lane brings those of its operands to bf16.
//
// A word holds codes of one output feature. Of a strip's step, lane l has two words for each code size of 4 bits:
//   fp8   words [half of 16 inputs][output feature l / 4, or that and 8]: of inputs 2c, 2c + 1, 2c + 8 and 2c + 9 of
//         the half, where c = l % 4
//   int4  words [output feature l / 4, or that and 8]: of inputs 8i + 2c and 8i + 2c + 1 for i below 4
// The first input of a pair is in the low half of the word, the second one in its high half, as an operand has them.
namespace winnow::cuda {

template <int kBits>
struct CodeWord {
  static constexpr int kCodes = 32 / kBits;
  static constexpr int kOfStep = kStepK / kCodes;  // words of an output feature

  // Of the matrix's words the one that has the codes of `word` (below kOfStep) of an output feature's step.
  static __host__ __device__ int64_t Place(const PackedShape& shape, int out, int step, int word) {
    constexpr int kStripWords = kStripOut * kOfStep, kLaneWords = kStripWords / 32;
    const int strip = out / kStripOut, line = out % 8, half = out % kStripOut / 8;
    const StripRange pass = shape.PassOf(strip);
    const int64_t before = int64_t{pass.first} * shape.steps + int64_t{step} * pass.count + (strip - pass.first);
    return before * kStripWords + (line * 4 + word % 4) * kLaneWords + word / 4 * 2 + half;
  }
  // Which input of its step code `i` of that word is.
  static __host__ __device__ int Input(int word, int i) {
    if (kBits == 8) return word / 4 * 16 + word % 4 * 2 + i % 2 + i / 2 * 8;
    return i / 2 * 8 + word * 2 + i % 2;
  }
  // Puts code i into a word that has zeros there. Of fp8 codes 0 and 1 lie as bf16 has their bits, sign, exponent and
  // mantissa; codes 2 and 3 lie where two shifts bring them there.
  static __host__ __device__ uint32_t With(uint32_t word, int i, uint32_t code) {
    const int half = i % 2 * 16;
    if (kBits == 4) return word | (code & 15) << (half + i / 2 * 4);
    const uint32_t sign = code >> 7, rest = code & 127;
    if (i < 2) return word | (sign << 15 | rest << 4) << half;
    return word | (sign << 11 | (rest >> 4) << 12 | (rest & 15)) << half;
  }
};

__device__ inline uint32_t FmaPair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

// The pairs of a word of e4m3, to bf16: exponent and mantissa in a bf16 are 2^120 too small as the exponents' biases
// are 7 and 127. Exact, subnormals too; NaN is not kept (`pack` makes none).
__device__ inline void UnpackF8(uint32_t word, uint32_t& low_k, uint32_t& high_k) {
  constexpr uint32_t kFactor = 0x7b807b80u;  // 2^120
  const uint32_t other = (word << 4 & 0x80f080f0u) | (word >> 4 & 0x07000700u);
  low_k = FmaPair(word & 0x87f087f0u, kFactor, 0x80008000u);
  high_k = FmaPair(other, kFactor, 0x80008000u);
}

// The scale of a group of int4 weights is an f32 whose lowest bits are the group's zero, 0 to 16.
inline constexpr uint32_t kI4ZeroBits = 31;

// -(128 + zero) twice in bf16.
__device__ inline uint32_t MinusI4Zeros(uint32_t zero) {
  return 0xc300c300u + zero * 0x00010001u;
}

// The codes in bits 0 to 3 and 16 to 19 less their zero, to bf16: as the lowest bits of the mantissa of 128 they are
// 128 + code, and the difference is exact. minus_zeros: MinusI4Zeros.
__device__ inline uint32_t I4PairToBf16(uint32_t codes, uint32_t minus_zeros) {
  return FmaPair((codes & 0x000f000fu) | 0x43004300u, 0x3f803f80u, minus_zeros);
}

}  // namespace winnow::cuda
