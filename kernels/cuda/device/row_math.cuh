#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace winnow::device {

inline constexpr int kWarp = 32;

// The sum over a warp, the same bits in every lane.
template <typename T>
__device__ inline T WarpSum(T value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// 2^x to two units in the last place; 2^0 is 1, and what would be denormal is 0.
__device__ inline float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline float LowBf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float HighBf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Eight consecutive elements as f32, from f32 (32-byte aligned) or bf16 (16-byte aligned).
struct Float8 {
  float at[8];
};
__device__ inline Float8 LoadFloat8(const float* from) {
  const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ inline Float8 LoadFloat8(const __nv_bfloat16* from) {
  const uint4 a = *reinterpret_cast<const uint4*>(from);
  return {{LowBf16(a.x), HighBf16(a.x), LowBf16(a.y), HighBf16(a.y), LowBf16(a.z), HighBf16(a.z), LowBf16(a.w),
           HighBf16(a.w)}};
}
__device__ inline void StoreBf16x8(const Float8& values, void* to) {
  const float* v = values.at;
  *static_cast<uint4*>(to) =
      make_uint4(PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7]));
}

}  // namespace winnow::device
