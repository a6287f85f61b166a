#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/device/params/matmul_codes.h"

// Tensor-core fragments of y^T = W x^T: W on the M side (16 output features), rows of x on the N side (8), 16 of k.
namespace winnow::device {

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

// A word of e4m3 (matmul_codes.h), to bf16. Exact, subnormals too; NaN is not kept (`pack` makes none).
__device__ inline uint32_t F8PairToBf16(uint32_t pair) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(pair), "r"(0x7b807b80u), "r"(0x80008000u));
  return out;
}
__device__ inline void UnpackF8(uint32_t word, uint32_t& low_k, uint32_t& high_k) {
  low_k = F8PairToBf16(F8FirstPair(word));
  high_k = F8PairToBf16(F8SecondPair(word));
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
  // (codes & mask) | 128: an instruction takes one constant of its own, so that the compiler makes two of this.
  uint32_t mask = 0x000f000fu, bits, out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(codes), "r"(mask), "r"(0x43004300u));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(bits), "r"(0x3f803f80u), "r"(minus_zeros));
  return out;
}

}  // namespace winnow::device
