#pragma once
#include <cuda_bf16.h>

#include <cstdint>

// Tensor-core fragments of y^T = W x^T: W on the M side (16 output features), rows of x on the N side (8), 16 of k.
namespace winnow::cuda {

// Four 8 x 8 matrices of 16-bit elements (rows of 16 bytes); lane l gives the address of row l % 8 of matrix l / 8 and
// gets elements 2 * (l % 4) and the next of row l / 4 of each.
__device__ inline void LoadMatrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

__device__ inline void MultiplyAccumulate(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two e4m3 values, each in the high byte of its half word, to bf16: sign, exponent and mantissa go to their places in
// the bf16, which is then 2^120 too small as the exponents' biases are 7 and 127. Exact, subnormals too; NaN is not
// kept (`pack` makes none).
__device__ inline uint32_t F8PairToBf16(uint32_t high_bytes, uint32_t shifted_right_by_4) {
  const uint32_t bits = (high_bytes & 0x80008000u) | (shifted_right_by_4 & 0x07f007f0u);
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(bits), "r"(0x7b807b80u), "r"(0x80008000u));
  return out;
}

// `pack` orders the 16 weights of a k step so that the four bytes of a lane, at 4 * (lane % 4), are the weights
// 2c, 2c + 8, 2c + 1, 2c + 9 (c = lane % 4): just what the lane needs for both halves of the step.
__device__ __host__ inline int F8PackedPlace(int k) {
  const int half = k % 16 / 8, pair = k % 8 / 2, odd = k % 2;
  return k / 16 * 16 + 4 * pair + 2 * odd + half;
}
__device__ inline void UnpackF8(uint32_t bytes, uint32_t& low_k, uint32_t& high_k) {
  low_k = F8PairToBf16(bytes << 8, bytes << 4);
  high_k = F8PairToBf16(bytes, bytes >> 4);
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
  const uint32_t bits = (codes & 0x000f000fu) | 0x43004300u;
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(bits), "r"(0x3f803f80u), "r"(minus_zeros));
  return out;
}

// `pack` orders the 32 weights of two k steps so that the word of a lane c = lane % 4 has in nibble i the weight of
// input 8 * i + 2c (i < 4), and in nibble i + 4 that of the next input: the pairs that the lane needs for both steps.

}  // namespace winnow::cuda
