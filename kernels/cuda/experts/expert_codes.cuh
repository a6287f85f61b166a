#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/params/expert_codes.h"

// Codes of MXFP4 as bf16, which hold all of their values. A code's exponent and mantissa become those of a bf16, which
// is then 2^-126 of the value, or subnormal as the code is. A multiplication by a power of two, which is exact, brings
// in the block's scale, up to 2^-32 of what is meant, so that no scale up to kGreatestExpertScale overflows: sums are
// multiplied with that.
namespace winnow::device {

inline constexpr float kCodeSumFactor = 0x1p32f;

// The power of two that the codes of a block are multiplied with, twice.
__device__ inline uint32_t CodeFactor(uint32_t scale) {
  return (scale + 94u) * 0x00800080u;  // of exponent scale - 127 + 126 - 32, to which bf16 add 127
}

// Values 2 j and 2 j + 1 of a word.
template <int j>
__device__ inline uint32_t CodePair(uint32_t word, uint32_t factor) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(ExpertPairBits(word, j)), "r"(factor), "r"(0x80008000u));
  return out;
}

// The eight values of a word.
__device__ inline uint4 CodesOfWord(uint32_t word, uint32_t factor) {
  return make_uint4(CodePair<0>(word, factor), CodePair<1>(word, factor), CodePair<2>(word, factor),
                    CodePair<3>(word, factor));
}

}  // namespace winnow::device
