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

__device__ inline float WithZero(float scale, int zero) {
  return __uint_as_float((__float_as_uint(scale) & ~kI4ZeroBits) | static_cast<uint32_t>(zero));
}

// What is packed: the matrix, and the number of its scales or words, padding included.
struct PackTarget {
  float* scales;
  uint32_t* words;
  int out_features, in_features;
  int64_t num_scales, num_words;
};

// The first output feature and the group of a scale, by its place; `exists` says whether they are the matrix's.
template <typename Form>
struct ScaleOwner {
  __device__ ScaleOwner(const PackTarget& target, int64_t place) {
    if constexpr (Form::kHasGroups) {
      const int tile_groups = (target.in_features + Form::kChunkK - 1) / Form::kChunkK * Form::kChunkGroups;
      out = static_cast<int>(place / Form::kTileScales / tile_groups) * Form::kTileOut +
            static_cast<int>(place % Form::kTileScales) * Form::kScaleOut;
      group = static_cast<int>(place / Form::kTileScales % tile_groups);
    } else {
      out = static_cast<int>(place);
      group = 0;
    }
    exists = out < target.out_features && group * Form::kGroup < target.in_features;
  }
  int out, group;
  bool exists;
};

// One warp a scale, for weights in bf16 [out, in].
template <typename Form>
__global__ void ChooseScalesKernel(const __nv_bfloat16* row_major, PackTarget target) {
  const int64_t place = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (place >= target.num_scales) return;
  const int lane = threadIdx.x % 32, in = target.in_features;
  const ScaleOwner<Form> owner(target, place);
  const int rows = owner.exists ? min(Form::kScaleOut, target.out_features - owner.out) : 0;
  const int begin = owner.group * Form::kGroup, end = Form::kHasGroups ? min(begin + Form::kGroup, in) : in;
  float largest = 0;
  for (int row = 0; row < rows; ++row) {
    const __nv_bfloat16* const weights = row_major + int64_t{owner.out + row} * in;
    for (int k = begin + lane; k < end; k += 32) largest = fmaxf(largest, fabsf(__bfloat162float(weights[k])));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  if (lane != 0) return;
  target.scales[place] = !owner.exists ? 0 : Form::kBits == 8 ? F8Scale(largest) : WithZero(largest / 7, 8);
}

// A thread a scale that exists already.
template <typename Form>
__global__ void PlaceScalesKernel(MatrixCodes codes, PackTarget target) {
  const int64_t place = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (place >= target.num_scales) return;
  const ScaleOwner<Form> owner(target, place);
  float scale = 0;
  if (owner.exists) {
    const int groups = Form::kHasGroups ? (target.in_features + Form::kGroup - 1) / Form::kGroup : 1;
    const int64_t from = int64_t{owner.out} * groups + owner.group;
    scale = Form::kBits == 4 ? WithZero(codes.scales[from], codes.zeros[from]) : codes.scales[from];
  }
  target.scales[place] = scale;
}

// Codes of weights that are rounded to the scales chosen for them.
template <typename Form>
struct RoundedCodes {
  const __nv_bfloat16* row_major;
  const float* scales;

  __device__ uint32_t At(int out, int k, int in_features) const {
    const float weight = __bfloat162float(row_major[int64_t{out} * in_features + k]);
    const float word = scales[Form::ScalePlace(out, Form::kHasGroups ? k / Form::kGroup : 0, in_features)];
    if constexpr (Form::kBits == 8) {
      return static_cast<uint8_t>(__nv_cvt_float_to_fp8(weight / word, __NV_SATFINITE, __NV_E4M3));
    } else {
      const float scale = WithZero(word, 0), steps = scale > 0 ? rintf(weight / scale) : 0;
      return static_cast<uint32_t>(fminf(fmaxf(steps + 8, 0), 15));
    }
  }
};

struct StoredCodes {
  const uint8_t* codes;

  __device__ uint32_t At(int out, int k, int in_features) const { return codes[int64_t{out} * in_features + k]; }
};

// A thread a word of what is packed.
template <typename Form, typename Codes>
__global__ void PlaceCodesKernel(Codes codes, PackTarget target) {
  constexpr int kUnitWords = Form::kUnitBytes / 4;
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= target.num_words) return;
  const int chunks = (target.in_features + Form::kChunkK - 1) / Form::kChunkK, word = static_cast<int>(at % kUnitWords);
  const int first_out = static_cast<int>(at / kUnitWords / chunks) * Form::kTileOut;
  const int first_k = static_cast<int>(at / kUnitWords % chunks) * Form::kChunkK;
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 32 / Form::kBits; ++i) {
    const CodePlace place = Form::kBits == 8 ? F8Place(word, i) : I4Place(word, i);
    const int out = first_out + place.out, k = first_k + place.in;
    if (out >= target.out_features || k >= target.in_features) continue;
    const uint32_t code = codes.At(out, k, target.in_features);
    bits |= Form::kBits == 8 ? F8Bits(i, code) : (code & 15) << (4 * i);
  }
  target.words[at] = bits;
}

unsigned Blocks(int64_t items, int of_block) {
  return static_cast<unsigned>((items + of_block - 1) / of_block);
}

template <typename Form>
PackTarget TargetOf(const DeviceMatrix& matrix) {
  const int out = matrix.out_features, in = matrix.in_features;
  return {.scales = const_cast<float*>(matrix.scales),
          .words = static_cast<uint32_t*>(const_cast<void*>(matrix.data)),
          .out_features = out,
          .in_features = in,
          .num_scales = static_cast<int64_t>(Form::ScaleBytes(out, in) / sizeof(float)),
          .num_words = static_cast<int64_t>(Form::PackedBytes(out, in) / sizeof(uint32_t))};
}

}  // namespace

void PackRounded(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  VisitPackedForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    const PackTarget target = TargetOf<Form>(matrix);
    const auto* const weights = static_cast<const __nv_bfloat16*>(row_major);
    ChooseScalesKernel<Form><<<Blocks(target.num_scales, 8), 256, 0, stream>>>(weights, target);
    PlaceCodesKernel<Form>
        <<<Blocks(target.num_words, 256), 256, 0, stream>>>(RoundedCodes<Form>{weights, target.scales}, target);
  });
}

void PackCodes(Stream stream, const MatrixCodes& codes, const DeviceMatrix& matrix) {
  VisitPackedForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    const PackTarget target = TargetOf<Form>(matrix);
    PlaceScalesKernel<Form><<<Blocks(target.num_scales, 256), 256, 0, stream>>>(codes, target);
    PlaceCodesKernel<Form><<<Blocks(target.num_words, 256), 256, 0, stream>>>(StoredCodes{codes.codes}, target);
  });
}

}  // namespace winnow::device
