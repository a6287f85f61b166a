#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/matmul/matmul_forms.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_pack.h"
#include "kernels/device/params/matmul_codes.h"

namespace winnow::device {
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

__device__ inline uint8_t NearestF8(float value) {
  return static_cast<uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
}

// Word `word` of a row that is packed; code(k) gives the code of an input.
template <typename Code>
__device__ inline uint32_t F8Word(int word, const Code& code) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bits |= F8Bits(i, code(F8Input(word, i)));
  return bits;
}

// One block a row of W: bf16 [in_features] to e4m3, and the row's scale.
__global__ void PackF8Kernel(const __nv_bfloat16* row_major, int in_features, uint8_t* packed, float* scales) {
  const __nv_bfloat16* row = row_major + int64_t{blockIdx.x} * in_features;
  auto* const out = reinterpret_cast<uint32_t*>(packed + int64_t{blockIdx.x} * in_features);
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
  const auto code = [&](int k) { return NearestF8(__bfloat162float(row[k]) / scale); };
  for (int word = threadIdx.x; word < in_features / 4; word += blockDim.x) out[word] = F8Word(word, code);
}

// Of inputs that share a byte: the one in the low bits, and the other. `byte` counts the bytes of a row.
__device__ inline int2 I4InputsOf(int byte) {
  const int base = byte / 16 * 32 + byte % 16 / 4 * 2, nibble = byte % 4 * 2;
  const auto input = [&](int n) { return base + n % 4 * 8 + n / 4; };
  return make_int2(input(nibble), input(nibble + 1));
}

struct ScaleTarget {
  float* scales;
  int out_features, in_features;
  int64_t count;  // of scales, padding included
};

// The first output feature and the group of a scale, by its place; `exists` says whether they are the matrix's.
template <typename Form>
struct ScaleOwner {
  __device__ ScaleOwner(const ScaleTarget& target, int64_t place) {
    const int tile_groups = (target.in_features + Form::kChunkK - 1) / Form::kChunkK * Form::kChunkGroups;
    out = static_cast<int>(place / Form::kTileScales / tile_groups) * Form::kTileOut +
          static_cast<int>(place % Form::kTileScales) * Form::kScaleOut;
    group = static_cast<int>(place / Form::kTileScales % tile_groups);
    exists = out < target.out_features && group * Form::kGroup < target.in_features;
  }
  int out, group;
  bool exists;
};

__device__ inline float WithZero(float scale, int zero) {
  return __uint_as_float((__float_as_uint(scale) & ~kI4ZeroBits) | static_cast<uint32_t>(zero));
}

// One warp a scale: rounds its weights from bf16 [out, in].
template <typename Form>
__global__ void PackGroupsKernel(const __nv_bfloat16* row_major, uint8_t* packed, ScaleTarget target) {
  const int64_t place = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (place >= target.count) return;
  const int lane = threadIdx.x % 32, in = target.in_features;
  const ScaleOwner<Form> owner(target, place);
  if (!owner.exists) {
    if (lane == 0) target.scales[place] = 0;
    return;
  }
  const int rows = min(Form::kScaleOut, target.out_features - owner.out);
  const int begin = owner.group * Form::kGroup, end = min(begin + Form::kGroup, in);
  const auto weight = [&](int row, int k) { return __bfloat162float(row_major[int64_t{owner.out + row} * in + k]); };
  float largest = 0;
  for (int row = 0; row < rows; ++row) {
    for (int k = begin + lane; k < end; k += 32) largest = fmaxf(largest, fabsf(weight(row, k)));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  if constexpr (Form::kBits == 8) {
    const float scale = F8Scale(largest);
    if (lane == 0) target.scales[place] = scale;
    for (int row = 0; row < rows; ++row) {
      auto* const out = reinterpret_cast<uint32_t*>(packed + int64_t{owner.out + row} * in);
      const auto code = [&](int k) { return NearestF8(weight(row, k) / scale); };
      for (int word = begin / 4 + lane; word < end / 4; word += 32) out[word] = F8Word(word, code);
    }
  } else {
    const float scale = WithZero(largest / 7, 0);
    if (lane == 0) target.scales[place] = WithZero(scale, 8);
    const auto code = [&](int k) {
      const float steps = scale > 0 ? rintf(weight(0, k) / scale) : 0;
      return static_cast<int>(fminf(fmaxf(steps + 8, 0), 15));
    };
    uint8_t* const out = packed + int64_t{owner.out} * in / 2;
    for (int byte = begin / 2 + lane; byte < end / 2; byte += 32) {
      const int2 inputs = I4InputsOf(byte);
      out[byte] = static_cast<uint8_t>(code(inputs.x) | code(inputs.y) << 4);
    }
  }
}

// A thread a word of what is packed: codes [out, in] of one byte each.
template <int kBits>
__global__ void PackCodesKernel(const uint8_t* codes, int in_features, int64_t words, uint32_t* packed) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= words) return;
  const int row_words = in_features * kBits / 32, word = static_cast<int>(at % row_words);
  const uint8_t* const from = codes + at / row_words * in_features;
  if constexpr (kBits == 8) {
    packed[at] = F8Word(word, [&](int k) { return from[k]; });
  } else {
    uint32_t bits = 0;
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const int2 inputs = I4InputsOf(word * 4 + byte);
      bits |= static_cast<uint32_t>((from[inputs.x] & 15) | (from[inputs.y] & 15) << 4) << (8 * byte);
    }
    packed[at] = bits;
  }
}

// A thread a scale.
template <typename Form>
__global__ void PackScalesKernel(MatrixCodes codes, ScaleTarget target) {
  const int64_t place = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (place >= target.count) return;
  const ScaleOwner<Form> owner(target, place);
  float scale = 0;
  if (owner.exists) {
    const int groups = (target.in_features + Form::kGroup - 1) / Form::kGroup;
    const int64_t from = int64_t{owner.out} * groups + owner.group;
    scale = Form::kBits == 4 ? WithZero(codes.scales[from], codes.zeros[from]) : codes.scales[from];
  }
  target.scales[place] = scale;
}

// Two weights to bf16, scaled and rounded once.
__device__ inline uint32_t Scaled(uint32_t pair, float scale) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
  const __nv_bfloat162 scaled(__float2bfloat16(__fmul_rn(low, scale)), __float2bfloat16(__fmul_rn(high, scale)));
  return *reinterpret_cast<const uint32_t*>(&scaled);
}

// Packed rows to row-major bf16. 16 bytes of codes a thread.
template <typename Form>
__global__ void UnpackKernel(const uint4* packed, const float* scales, int in_features, int64_t pieces,
                             __nv_bfloat16* row_major) {
  constexpr int kPieceK = 128 / Form::kBits, kWordK = kPieceK / 4;
  const int64_t piece = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (piece >= pieces) return;
  const uint4 bytes = packed[piece];
  const int row = static_cast<int>(piece * kPieceK / in_features), k = static_cast<int>(piece * kPieceK % in_features);
  float scale;
  if constexpr (Form::kHasGroups) {
    scale = scales[Form::ScalePlace(row, k / Form::kGroup, in_features)];
  } else {
    scale = scales[row];
  }
  uint32_t out[kPieceK / 2];  // pairs of inputs
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if constexpr (Form::kBits == 8) {
      uint32_t low, high;
      UnpackF8(words[c], low, high);
      out[c] = Scaled(low, scale);
      out[4 + c] = Scaled(high, scale);
    } else {
      const uint32_t word = __float_as_uint(scale);
      const uint32_t minus_zeros = MinusI4Zeros(word & kI4ZeroBits);
#pragma unroll
      for (int eight = 0; eight < kWordK / 2; ++eight) {
        out[4 * eight + c] =
            Scaled(I4PairToBf16(words[c] >> 4 * eight, minus_zeros), __uint_as_float(word & ~kI4ZeroBits));
      }
    }
  }
  uint4* to = reinterpret_cast<uint4*>(row_major + piece * kPieceK);
#pragma unroll
  for (int i = 0; i < kPieceK / 8; ++i) {
    to[i] = make_uint4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
  }
}

unsigned Blocks(int64_t items, int of_block) {
  return static_cast<unsigned>((items + of_block - 1) / of_block);
}

template <typename Form>
ScaleTarget TargetOf(const DeviceMatrix& matrix) {
  return {.scales = const_cast<float*>(matrix.scales),
          .out_features = matrix.out_features,
          .in_features = matrix.in_features,
          .count = static_cast<int64_t>(Form::ScaleBytes(matrix.out_features, matrix.in_features) / sizeof(float))};
}

template <typename Form>
void Unpack(Stream stream, const DeviceMatrix& matrix, void* row_major) {
  const int64_t pieces = int64_t{matrix.out_features} * matrix.in_features * Form::kBits / 128;
  UnpackKernel<Form><<<Blocks(pieces, 256), 256, 0, stream>>>(static_cast<const uint4*>(matrix.data), matrix.scales,
                                                              matrix.in_features, pieces,
                                                              static_cast<__nv_bfloat16*>(row_major));
}

}  // namespace

void PackF8(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  PackF8Kernel<<<matrix.out_features, 256, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(row_major), matrix.in_features,
      static_cast<uint8_t*>(const_cast<void*>(matrix.data)), const_cast<float*>(matrix.scales));
}

void PackGroups(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  VisitGroupForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    const ScaleTarget target = TargetOf<Form>(matrix);
    PackGroupsKernel<Form><<<Blocks(target.count, 8), 256, 0, stream>>>(
        static_cast<const __nv_bfloat16*>(row_major), static_cast<uint8_t*>(const_cast<void*>(matrix.data)), target);
  });
}

void PackCodes(Stream stream, const MatrixCodes& codes, const DeviceMatrix& matrix) {
  auto* const packed = static_cast<uint32_t*>(const_cast<void*>(matrix.data));
  const auto words =
      static_cast<int64_t>(DtypeBytes(matrix.dtype, static_cast<size_t>(matrix.out_features) * matrix.in_features) / 4);
  const auto pack = matrix.dtype == Dtype::kF8 ? PackCodesKernel<8> : PackCodesKernel<4>;
  pack<<<Blocks(words, 256), 256, 0, stream>>>(codes.codes, matrix.in_features, words, packed);
  if (matrix.group_size == 0) {
    cudaMemcpyAsync(const_cast<float*>(matrix.scales), codes.scales, matrix.out_features * sizeof(float),
                    cudaMemcpyDeviceToDevice, stream);
    return;
  }
  VisitGroupForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    const ScaleTarget target = TargetOf<Form>(matrix);
    PackScalesKernel<Form><<<Blocks(target.count, 256), 256, 0, stream>>>(codes, target);
  });
}

void UnpackMatrix(Stream stream, const DeviceMatrix& matrix, void* row_major) {
  if (matrix.group_size == 0) return Unpack<F8Form>(stream, matrix, row_major);
  VisitGroupForm(matrix.dtype, matrix.group_size,
                 [&](auto form) { Unpack<decltype(form)>(stream, matrix, row_major); });
}

}  // namespace winnow::device
