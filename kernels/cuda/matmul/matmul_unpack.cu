#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/matmul/matmul_forms.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_pack.h"
#include "kernels/device/params/matmul_codes.h"

// Packed weights back to bf16 row by row, for the products of prefill.
namespace winnow::device {
namespace {

// Two weights to bf16, scaled and rounded once.
__device__ inline uint32_t Scaled(uint32_t pair, float scale) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
  const __nv_bfloat162 scaled(__float2bfloat16(__fmul_rn(low, scale)), __float2bfloat16(__fmul_rn(high, scale)));
  return *reinterpret_cast<const uint32_t*>(&scaled);
}

// Four pairs of inputs: of output features l / 4 and 8 more, then the same 8 inputs on.
template <typename Form>
__device__ inline void UnpackPairs(const uint32_t* words, const float (&scales)[2], uint32_t (&pairs)[4]) {
  if constexpr (Form::kBits == 8) {
    UnpackF8(words[0], pairs[0], pairs[2]);
    UnpackF8(words[1], pairs[1], pairs[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = Scaled(pairs[i], scales[i % 2]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = __float_as_uint(scales[i % 2]);
      pairs[i] = Scaled(I4PairToBf16(words[0] >> 4 * i, MinusI4Zeros(word & kI4ZeroBits)),
                        __uint_as_float(word & ~kI4ZeroBits));
    }
  }
}

// A block a unit, a warp a strip, which it turns in shared memory. Grid: chunks, tiles.
template <typename Form>
__global__ void UnpackKernel(const uint4* packed, const float* scales, int out_features, int in_features,
                             __nv_bfloat16* row_major) {
  constexpr int kPieces = Form::kStripBytes / 512, kSteps = Form::kChunkK / 16, kStepWords = kPieces * 4 / kSteps;
  constexpr int kPitch = Form::kChunkK / 2 + 4;  // of words; 4 more, so that rows begin in banks of their own
  __shared__ __align__(16) uint32_t turned[Form::kTileOut / kStripOut][kStripOut][kPitch];
  const int strip = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
  const int first_out = blockIdx.y * Form::kTileOut + strip * kStripOut, first_k = blockIdx.x * Form::kChunkK;
  const int64_t unit = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const uint4* const from = packed + (unit * Form::kUnitBytes + strip * Form::kStripBytes) / 16 + lane;
  uint32_t words[kPieces * 4];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const uint4 four = from[piece * 32];
    words[4 * piece] = four.x, words[4 * piece + 1] = four.y, words[4 * piece + 2] = four.z,
              words[4 * piece + 3] = four.w;
  }
  float of_group[2];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step == 0 || (Form::kHasGroups && step * 16 % (Form::kHasGroups ? Form::kGroup : 1) == 0)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int out = min(first_out + row + 8 * half, out_features - 1),
                  k = min(first_k + step * 16, in_features - 1);
        of_group[half] = scales[Form::ScalePlace(out, Form::kHasGroups ? k / Form::kGroup : 0, in_features)];
      }
    }
    uint32_t pairs[4];
    UnpackPairs<Form>(words + step * kStepWords, of_group, pairs);
#pragma unroll
    for (int i = 0; i < 4; ++i) turned[strip][row + i % 2 * 8][step * 8 + i / 2 * 4 + lane % 4] = pairs[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kStripOut / 2; ++i) {
    const int out = i * 2 + lane / 16, k = first_k + lane % 16 * 8;
    if (first_out + out >= out_features || k >= in_features) continue;
    *reinterpret_cast<uint4*>(row_major + int64_t{first_out + out} * in_features + k) =
        *reinterpret_cast<const uint4*>(&turned[strip][out][lane % 16 * 4]);
  }
}

}  // namespace

void UnpackMatrix(Stream stream, const DeviceMatrix& matrix, void* row_major) {
  VisitPackedForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    const dim3 grid((matrix.in_features + Form::kChunkK - 1) / Form::kChunkK,
                    (matrix.out_features + Form::kTileOut - 1) / Form::kTileOut);
    UnpackKernel<Form><<<grid, Form::kTileOut * 2, 0, stream>>>(static_cast<const uint4*>(matrix.data), matrix.scales,
                                                                matrix.out_features, matrix.in_features,
                                                                static_cast<__nv_bfloat16*>(row_major));
  });
}

}  // namespace winnow::device
