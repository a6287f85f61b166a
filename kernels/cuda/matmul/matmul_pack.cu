#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/matmul/matmul_pack.h"
#include "kernels/cuda/matmul/packed_codes.cuh"
#include "kernels/cuda/matmul/packed_forms.cuh"

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

__device__ inline uint8_t NearestF8(float value) {
  return static_cast<uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
}

// A packed matrix that is written, and of its output features one at a time.
struct PackTarget {
  uint32_t* words;
  PackedShape shape;
  int in_features;

  // Word `i` of an output feature, whose inputs from `input` on it has; code(k) gives those.
  template <int kBits, typename Code>
  __device__ void Store(int out, int i, const Code& code) const {
    using Word = CodeWord<kBits>;
    const int step = i / Word::kOfStep, of_step = i % Word::kOfStep;
    uint32_t word = 0;
#pragma unroll
    for (int at = 0; at < Word::kCodes; ++at)
      word = Word::With(word, at, code(step * kStepK + Word::Input(of_step, at)));
    words[Word::Place(shape, out, step, of_step)] = word;
  }
};

// One block a row of W: bf16 [in_features] to e4m3, and the row's scale.
__global__ void PackF8Kernel(const __nv_bfloat16* row_major, PackTarget to, float* scales) {
  const int out = blockIdx.x, in_features = to.in_features;
  const __nv_bfloat16* row = row_major + int64_t{out} * in_features;
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
  if (threadIdx.x == 0) scales[out] = scale;
  for (int word = threadIdx.x; word < in_features / 4; word += blockDim.x) {
    to.Store<8>(out, word, [&](int k) { return NearestF8(__bfloat162float(row[k]) / scale); });
  }
}

// The scales of groups of a packed matrix that are written, a place after the other.
template <typename Form>
struct ScaleTarget {
  static constexpr int kOutputs = Form::kBits == 4 ? 1 : kStripOut;  // that share a scale

  // The output feature and the group of place `place`; whether they are the matrix's.
  struct Owner {
    int out, group;
    bool exists;
  };
  __device__ Owner OwnerOf(int64_t place) const {
    // Places of a strip's group lie together, and are found from any of the pass's.
    const int groups = shape.chunks * Form::kChunkGroups;
    const int64_t of_strips = place / Form::kStripScales;
    const StripRange pass = shape.PassOf(static_cast<int>(of_strips / groups));
    const int64_t in_pass = of_strips - int64_t{pass.first} * groups;
    const int strip = pass.first + static_cast<int>(in_pass % pass.count);
    const int group = static_cast<int>(in_pass / pass.count);
    const int out = strip * kStripOut + (Form::kBits == 4 ? static_cast<int>(place % kStripOut) : 0);
    return {out, group, out < out_features && group * Form::kGroup < in_features};
  }

  float* scales;
  PackedShape shape;
  int out_features, in_features;
  int64_t count;  // of scales, padding included
};

__device__ inline float WithZero(float scale, int zero) {
  return __uint_as_float((__float_as_uint(scale) & ~kI4ZeroBits) | static_cast<uint32_t>(zero));
}

// One warp a scale: rounds its weights from bf16 [out, in].
template <typename Form>
__global__ void PackGroupsKernel(const __nv_bfloat16* row_major, PackTarget to, ScaleTarget<Form> target) {
  const int64_t place = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (place >= target.count) return;
  const int lane = threadIdx.x % 32, in = target.in_features;
  const auto owner = target.OwnerOf(place);
  if (!owner.exists) {
    if (lane == 0) target.scales[place] = 0;
    return;
  }
  const int rows = min(target.kOutputs, target.out_features - owner.out);
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
      for (int word = begin / 4 + lane; word < end / 4; word += 32) {
        to.Store<8>(owner.out + row, word, [&](int k) { return NearestF8(weight(row, k) / scale); });
      }
    }
  } else {
    const float scale = WithZero(largest / 7, 0);
    if (lane == 0) target.scales[place] = WithZero(scale, 8);
    const auto code = [&](int k) {
      const float steps = scale > 0 ? rintf(weight(0, k) / scale) : 0;
      return static_cast<uint32_t>(fminf(fmaxf(steps + 8, 0), 15));
    };
    for (int word = begin / 8 + lane; word < end / 8; word += 32) to.Store<4>(owner.out, word, code);
  }
}

// A thread a word of what is packed: codes [out, in] of one byte each.
template <int kBits>
__global__ void PackCodesKernel(const uint8_t* codes, int64_t words, PackTarget to) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= words) return;
  const int of_row = to.in_features * kBits / 32, out = static_cast<int>(at / of_row);
  const uint8_t* const from = codes + int64_t{out} * to.in_features;
  to.Store<kBits>(out, static_cast<int>(at % of_row), [&](int k) { return from[k]; });
}

// A thread a scale.
template <typename Form>
__global__ void PackScalesKernel(MatrixCodes codes, ScaleTarget<Form> target) {
  const int64_t place = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (place >= target.count) return;
  const auto owner = target.OwnerOf(place);
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

// Output features [first, first + count) of a packed matrix to row-major bf16, `first` of a strip. A thread a step of
// an output feature.
template <typename Form>
__global__ void UnpackKernel(const uint32_t* packed, const float* scales, PackedShape shape, int first, int count,
                             __nv_bfloat16* row_major) {
  using Word = CodeWord<Form::kBits>;
  // Threads beside each other have output features of a strip: what they read lies together.
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int row = static_cast<int>(at / kStripOut / shape.steps) * kStripOut + static_cast<int>(at % kStripOut);
  const int step = static_cast<int>(at / kStripOut % shape.steps), out = first + row;
  if (row >= count) return;
  float scale;
  if constexpr (Form::kHasGroups) {
    const size_t place = Form::ScalePlace(shape, out / kStripOut, step * kStepK / Form::kGroup);
    scale = scales[place + (Form::kBits == 4 ? out % kStripOut : 0)];
  } else {
    scale = scales[out];
  }
  uint32_t pairs[kStepK / 2];  // of inputs
#pragma unroll
  for (int i = 0; i < Word::kOfStep; ++i) {
    const uint32_t word = packed[Word::Place(shape, out, step, i)];
    if constexpr (Form::kBits == 8) {
      uint32_t low, high;
      UnpackF8(word, low, high);
      pairs[Word::Input(i, 0) / 2] = Scaled(low, scale);
      pairs[Word::Input(i, 2) / 2] = Scaled(high, scale);
    } else {
      const uint32_t scale_word = __float_as_uint(scale);
      const uint32_t minus_zeros = MinusI4Zeros(scale_word & kI4ZeroBits);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        pairs[Word::Input(i, 2 * pair) / 2] =
            Scaled(I4PairToBf16(word >> 4 * pair, minus_zeros), __uint_as_float(scale_word & ~kI4ZeroBits));
      }
    }
  }
  uint4* const to = reinterpret_cast<uint4*>(row_major + (int64_t{row} * shape.steps + step) * kStepK);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = make_uint4(pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
  }
}

unsigned Blocks(int64_t items, int of_block) {
  return static_cast<unsigned>((items + of_block - 1) / of_block);
}

template <typename Form>
ScaleTarget<Form> ScaleTargetOf(const DeviceMatrix& matrix) {
  return {.scales = const_cast<float*>(matrix.scales),
          .shape = PackedShape(matrix.out_features, matrix.in_features),
          .out_features = matrix.out_features,
          .in_features = matrix.in_features,
          .count = static_cast<int64_t>(Form::ScaleBytes(matrix.out_features, matrix.in_features) / sizeof(float))};
}

PackTarget PackTargetOf(const DeviceMatrix& matrix) {
  return {.words = static_cast<uint32_t*>(const_cast<void*>(matrix.data)),
          .shape = PackedShape(matrix.out_features, matrix.in_features),
          .in_features = matrix.in_features};
}

}  // namespace

void PackF8(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  PackF8Kernel<<<matrix.out_features, 256, 0, stream>>>(static_cast<const __nv_bfloat16*>(row_major),
                                                        PackTargetOf(matrix), const_cast<float*>(matrix.scales));
}

void PackGroups(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  VisitGroupForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    const ScaleTarget<Form> target = ScaleTargetOf<Form>(matrix);
    PackGroupsKernel<Form><<<Blocks(target.count, 8), 256, 0, stream>>>(static_cast<const __nv_bfloat16*>(row_major),
                                                                        PackTargetOf(matrix), target);
  });
}

void PackCodes(Stream stream, const MatrixCodes& codes, const DeviceMatrix& matrix) {
  const auto words =
      static_cast<int64_t>(DtypeBytes(matrix.dtype, static_cast<size_t>(matrix.out_features) * matrix.in_features) / 4);
  const auto pack = matrix.dtype == Dtype::kF8 ? PackCodesKernel<8> : PackCodesKernel<4>;
  pack<<<Blocks(words, 256), 256, 0, stream>>>(codes.codes, words, PackTargetOf(matrix));
  if (matrix.group_size == 0) {
    cudaMemcpyAsync(const_cast<float*>(matrix.scales), codes.scales, matrix.out_features * sizeof(float),
                    cudaMemcpyDeviceToDevice, stream);
    return;
  }
  VisitGroupForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    const ScaleTarget<Form> target = ScaleTargetOf<Form>(matrix);
    PackScalesKernel<Form><<<Blocks(target.count, 256), 256, 0, stream>>>(codes, target);
  });
}

void UnpackRows(Stream stream, const DeviceMatrix& matrix, int first, int count, void* row_major) {
  const PackedShape shape(matrix.out_features, matrix.in_features);
  const int64_t strips = (count + kStripOut - 1) / kStripOut;
  VisitPackedForm(matrix.dtype, matrix.group_size, [&](auto form) {
    UnpackKernel<decltype(form)><<<Blocks(strips * kStripOut * shape.steps, 256), 256, 0, stream>>>(
        static_cast<const uint32_t*>(matrix.data), matrix.scales, shape, first, count,
        static_cast<__nv_bfloat16*>(row_major));
  });
}

}  // namespace winnow::cuda
