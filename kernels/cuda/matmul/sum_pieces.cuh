#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// Parts of sums on their way from one block to another, four values of a lane at a time. A word that has not come yet
// is +0, so that words tell of themselves and nobody needs a flag or a fence. A sum of +0 is left as -0, which adds up
// to the same. Who takes a part leaves zeros for the next one.
namespace winnow::cuda {

__device__ inline void StorePiece(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ inline float4 LoadPiece(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline float NeverPlusZero(float x) {
  return __float_as_uint(x) == 0 ? -0.0f : x;
}
// Of all four.
__device__ inline bool HasCome(float4 v) {
  return __float_as_uint(v.x) != 0 && __float_as_uint(v.y) != 0 && __float_as_uint(v.z) != 0 &&
         __float_as_uint(v.w) != 0;
}

}  // namespace winnow::cuda
