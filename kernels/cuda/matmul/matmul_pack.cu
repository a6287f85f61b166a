#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_pack.h"

namespace winnow::cuda {
namespace {

inline constexpr float kLargestF8 = 448;

// The power of two that brings the largest weight of a row into (224, 448]. As e4m3 is a floating format, a power of
// two costs no precision against the exact ratio, and makes scale * weight exact in bf16, which prefill uses.
__device__ inline float F8Scale(float largest) {
  if (!(largest > 0)) return 1;
  int exponent;
  const float fraction = frexpf(largest / kLargestF8, &exponent);  // in [0.5, 1)
  return ldexpf(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

// One block a row of W: bf16 [in_features] to e4m3 in the order of F8PackedPlace, and the row's scale.
__global__ void PackF8Kernel(const __nv_bfloat16* row_major, int in_features, uint8_t* packed, float* scales) {
  const __nv_bfloat16* row = row_major + int64_t{blockIdx.x} * in_features;
  uint8_t* out = packed + int64_t{blockIdx.x} * in_features;
  float largest = 0;
  for (int k = threadIdx.x; k < in_features; k += blockDim.x) largest = fmaxf(largest, fabsf(__bfloat162float(row[k])));
  __shared__ float of_warps[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) largest = fmaxf(largest, of_warps[warp]);
  const float scale = F8Scale(largest);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (int k = threadIdx.x; k < in_features; k += blockDim.x) {
    const float value = __bfloat162float(row[k]) / scale;
    out[F8PackedPlace(k)] = static_cast<uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
  }
}

// Packed e4m3 rows to row-major bf16, scales applied. 16 weights a thread.
__global__ void UnpackF8Kernel(const uint8_t* packed, const float* scales, int in_features, int64_t groups,
                               __nv_bfloat16* row_major) {
  const int64_t group = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (group >= groups) return;
  const uint4 bytes = reinterpret_cast<const uint4*>(packed)[group];
  const __nv_bfloat16 scale = __float2bfloat16(scales[group * 16 / in_features]);
  const __nv_bfloat162 scales2(scale, scale);
  uint32_t out[8];
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    uint32_t low, high;
    UnpackF8(words[pair], low, high);
    const __nv_bfloat162 low2 = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&low), scales2);
    const __nv_bfloat162 high2 = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&high), scales2);
    out[pair] = *reinterpret_cast<const uint32_t*>(&low2);
    out[4 + pair] = *reinterpret_cast<const uint32_t*>(&high2);
  }
  uint4* to = reinterpret_cast<uint4*>(row_major + group * 16);
  to[0] = make_uint4(out[0], out[1], out[2], out[3]);
  to[1] = make_uint4(out[4], out[5], out[6], out[7]);
}

}  // namespace

void PackF8(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  PackF8Kernel<<<matrix.out_features, 256, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(row_major), matrix.in_features,
      static_cast<uint8_t*>(const_cast<void*>(matrix.data)), const_cast<float*>(matrix.scales));
}

void UnpackF8(Stream stream, const DeviceMatrix& matrix, void* row_major) {
  const int64_t groups = int64_t{matrix.out_features} * matrix.in_features / 16;
  UnpackF8Kernel<<<static_cast<unsigned>((groups + 255) / 256), 256, 0, stream>>>(
      static_cast<const uint8_t*>(matrix.data), matrix.scales, matrix.in_features, groups,
      static_cast<__nv_bfloat16*>(row_major));
}

}  // namespace winnow::cuda
