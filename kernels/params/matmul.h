#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

// Products with packed weights. What holds for all parameters stands in kernels/kernel_table.h.

namespace winnow {

// A weight matrix of out_features x in_features, packed for streaming by output panels of kPanel:
//   bf16: [ceil(out/64)][in_padded/2][64][2]   f32: [ceil(out/64)][in_padded][64]
// (oneDNN's BA16a64b2a and BA16a64b). in_padded is in_features rounded up to 32; the padding is zero.
//
// A quantised matrix holds codes, and a scale for every output and group of group_size consecutive inputs:
//   fp8: weight = value of the e4m3 code * scale   int8, int4: weight = code * scale - zero * scale
// with unsigned codes and a zero of its own for every scale. Both are rounded to f32 once, and products and sums are
// those of the f32 matrix. Panel by panel its groups follow each other, each as f32 scales [64], for integers i16 zeros
// [64], and codes that lie low bits first by inputs:
//   fp8: [group/2][64] of 16 bits, 2 inputs each   int8: [group/4][64] of 32 bits   int4: [group/8][64] of 32 bits
// The last group ends with in_padded. Where input_order is set, input i of the matrix is input_order[i] of x.
//
// With `mxfp4` codes of int4's layout are e2m1 values (sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3,
// 4, 6), and weight = value of the code * 2^(exponent - 127). A group is 32 inputs and begins with its exponents, bytes
// [64], in the place of scales and zeros.
struct PackedMatrix {
  const void* data = nullptr;
  int out_features = 0;
  int in_features = 0;
  Dtype dtype = Dtype::kBf16;             // kBf16 or kF32; quantised: kF8, kI8 or kI4
  int group_size = 0;                     // quantised: a multiple of 32, at most in_padded
  const uint32_t* input_order = nullptr;  // [in_features] or null
  bool mxfp4 = false;                     // of kI4
};

inline constexpr int kPanel = 64;
constexpr int PackedInFeatures(int in_features) {
  return (in_features + 31) / 32 * 32;
}
constexpr size_t PackedBytes(int out_features, int in_features, Dtype dtype) {
  return static_cast<size_t>((out_features + kPanel - 1) / kPanel) * kPanel * PackedInFeatures(in_features) *
         DtypeBytes(dtype);
}
constexpr bool IsQuantized(Dtype dtype) {
  return dtype == Dtype::kF8 || dtype == Dtype::kI8 || dtype == Dtype::kI4;
}
// Of one panel's scales and zeros of one group.
constexpr size_t GroupScaleBytes(const PackedMatrix& matrix) {
  if (matrix.mxfp4) return kPanel;
  return kPanel * (sizeof(float) + (matrix.dtype == Dtype::kF8 ? 0 : sizeof(int16_t)));
}
constexpr size_t PanelBytes(const PackedMatrix& matrix) {
  const int in_padded = PackedInFeatures(matrix.in_features);
  if (!IsQuantized(matrix.dtype)) return PackedBytes(kPanel, in_padded, matrix.dtype);
  const size_t groups = static_cast<size_t>((in_padded + matrix.group_size - 1) / matrix.group_size);
  return DtypeBytes(matrix.dtype, static_cast<size_t>(in_padded) * kPanel) + groups * GroupScaleBytes(matrix);
}
// A multiple of 64.
constexpr size_t PackedBytes(const PackedMatrix& matrix) {
  return static_cast<size_t>((matrix.out_features + kPanel - 1) / kPanel) * PanelBytes(matrix);
}

// What a matmul does to its input rows first.
enum class InputTransform : uint8_t {
  kNone,
  kRmsNorm,  // x * rsqrt(mean(x^2) + eps) * norm_weight
  // x holds gate then up, 2 * in_features wide:
  kSiluMul,         // silu(gate) * up
  kGeluTanhMul,     // gelu(gate) * up, in the approximation by tanh
  kClampedSiluMul,  // g * sigmoid(1.702 g) * (u + 1) with g = min(gate, 7), u = clamp(up, -7, 7)
};

// y = transform(x) W^T (+ bias), or y += ... when accumulate. Activations are f32 and products are summed
// in f32. With bf16 weights a prefill matmul may round its transformed input to bf16; a decode matmul never does.
struct MatmulParams {
  const float* x = nullptr;  // [num_rows, x_stride]
  int64_t x_stride = 0;
  int num_rows = 0;
  InputTransform transform = InputTransform::kNone;
  const float* norm_weight = nullptr;  // [in_features], kRmsNorm only
  float norm_epsilon = 0;
  PackedMatrix weight;
  const float* bias = nullptr;  // [out_features], may be null
  bool accumulate = false;
  float* y = nullptr;  // [num_rows, y_stride]
  int64_t y_stride = 0;
};

// Packs a row-major weight [out_features, in_features] of any dtype (used at load, allowed to be slow).
struct PackParams {
  const void* weight = nullptr;
  Dtype dtype = Dtype::kBf16;
  int out_features = 0;
  int in_features = 0;
  Dtype packed_dtype = Dtype::kBf16;
  void* packed = nullptr;  // PackedBytes, 64-byte aligned
};

}  // namespace winnow
