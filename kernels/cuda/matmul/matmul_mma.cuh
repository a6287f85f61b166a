#pragma once
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

}  // namespace winnow::cuda
