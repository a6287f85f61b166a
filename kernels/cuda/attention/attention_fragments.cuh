#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "common/base/dtype.h"

namespace winnow::device {

// Operands of mma.m16n8k16: keys, or elements of V, on the M side, the group's queries on the N side. In a warp, `quad`
// is lane / 4 and `pair` lane % 4. Products are of bf16 where rows are, of integers where they are
// int8 (attention_int8.cuh), else of f16, which holds every value of fp8 and int4 exactly. Which element of head_dim an
// operand's k index (of K) or m index (of V) stands for is chosen so that a 32-bit word of a row widens into whole
// operands.

// 8x8 tiles of 16-bit units in shared memory, rows of 16 bytes at the addresses of lanes 0..8n-1. A lane gets units
// 2 pair and 2 pair + 1 of row `quad`; transposed, unit `quad` of rows 2 pair and 2 pair + 1.
__device__ inline void LoadTiles(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void LoadTiles(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}
__device__ inline void LoadTilesTransposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void LoadTilesTransposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}
// The transposed of an 8x8 tile that the warp holds as LoadTiles gives it.
__device__ inline uint32_t TransposeTile(uint32_t r) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(r));
  return out;
}

template <Dtype kDtype>
struct Fragments {
  static constexpr bool kScaled = kDtype != Dtype::kBf16;

  // c += a b
  __device__ static void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kScaled) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }

  __device__ static uint32_t Pack(float low, float high) {
    uint32_t packed;
    if constexpr (kScaled) {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
  }

  // The element of head_dim that k index 2 pair + low + 8 high of product `step` stands for.
  __device__ static constexpr int KeyElement(int step, int pair, int high, int low) {
    if constexpr (kDtype == Dtype::kBf16) return 16 * step + 2 * pair + 8 * high + low;
    if constexpr (kDtype == Dtype::kI4) return 32 * (step / 2) + 8 * pair + 2 * (step % 2) + high + 4 * low;
    return 16 * step + 4 * pair + high + 2 * low;
  }
  // The element that m index quad + 8 high of tile `tile` stands for.
  __device__ static constexpr int ValueElement(int tile, int quad, int high) {
    if constexpr (kDtype == Dtype::kBf16) return 16 * tile + quad + 8 * high;
    if constexpr (kDtype == Dtype::kI4) return 32 * (tile / 2) + 4 * quad + 2 * (tile % 2) + high;
    return 16 * tile + 2 * quad + high;
  }

  __device__ static uint32_t Subtract(uint32_t a, uint32_t b) {
    const __half2 d = __hsub2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
    return reinterpret_cast<const uint32_t&>(d);
  }

  // f16 pairs of the bytes 0, 2 and 1, 3 of a word.
  __device__ static void WidenBytes(uint32_t word, uint32_t& even, uint32_t& odd) {
    const uint32_t sorted = __byte_perm(word, 0, 0x3120);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.rn.f16x2.e4m3x2 %0, lo; cvt.rn.f16x2.e4m3x2 %1, hi;}"
        : "=r"(even), "=r"(odd)
        : "r"(sorted));
#else
    const auto widen = [](uint32_t bytes_at_top) {  // exponents are biased by 7 here and by 15 there
      const uint32_t bits = (bytes_at_top & 0x80008000u) | ((bytes_at_top & 0x7f007f00u) >> 1);
      const __half2 wide = __hmul2(reinterpret_cast<const __half2&>(bits), __half2half2(__float2half(256.0f)));
      return reinterpret_cast<const uint32_t&>(wide);
    };
    even = widen(__byte_perm(sorted, 0, 0x1404));
    odd = widen(__byte_perm(sorted, 0, 0x3424));
#endif
  }
  // f16 pairs of the nibbles 0, 4 and 1, 5 of a word.
  __device__ static void WidenNibbles(uint32_t word, uint32_t& even, uint32_t& odd) {
    even = Subtract((word & 0x000f000fu) | 0x64006400u, 0x64086408u);
    const uint32_t sixteenfold = (word & 0x00f000f0u) | 0x64006400u;  // 1024 + 16 u
    const __half2 wide = __hfma2(reinterpret_cast<const __half2&>(sixteenfold), __half2half2(__float2half(1.0f / 16)),
                                 __half2half2(__float2half(-72.0f)));
    odd = reinterpret_cast<const uint32_t&>(wide);
  }
};

}  // namespace winnow::device
