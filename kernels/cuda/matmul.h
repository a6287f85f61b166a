#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/stream.h"

namespace winnow::cuda {

// A weight matrix W [out_features, in_features] in device memory as decode_matmul reads it (`pack` makes it from the
// row-major form), bf16 or fp8 e4m3 with one f32 scale per output feature.
struct DeviceMatrix {
  const void* data = nullptr;     // packed_bytes
  const float* scales = nullptr;  // [out_features], kF8 only
  int out_features = 0;
  int in_features = 0;
  Dtype dtype = Dtype::kBf16;
};

// y = x W^T (+ y when accumulate), x bf16, sums in f32. Row-invariant: the bits of a row of y depend on that row of x
// and on W alone, for 1 to 64 rows.
struct DecodeMatmulParams {
  const void* x = nullptr;  // [num_rows, x_stride] bf16
  int64_t x_stride = 0;
  int num_rows = 0;  // 1..64
  DeviceMatrix weight;
  bool accumulate = false;  // y is f32 then
  void* y = nullptr;        // [num_rows, y_stride] y_dtype
  int64_t y_stride = 0;
  Dtype y_dtype = Dtype::kF32;  // kF32 or kBf16
  void* scratch = nullptr;      // decode_scratch_bytes; zeroed once when it is allocated
};

struct PrefillMatmulParams {
  const void* x = nullptr;  // [num_rows, x_stride] bf16
  int64_t x_stride = 0;
  int num_rows = 0;
  DeviceMatrix weight;
  bool accumulate = false;
  void* y = nullptr;
  int64_t y_stride = 0;
  Dtype y_dtype = Dtype::kF32;
  void* workspace = nullptr;  // prefill_workspace_bytes
};

struct MatmulKernels {
  size_t (*packed_bytes)(int out_features, int in_features, Dtype dtype);
  // Row-major bf16 [out, in] in device memory to `matrix.data` (and scales for kF8).
  void (*pack)(Stream, const void* row_major, const DeviceMatrix& matrix);
  size_t (*decode_scratch_bytes)(int max_rows, int max_out_features);
  void (*decode_matmul)(Stream, const DecodeMatmulParams&);
  size_t (*prefill_workspace_bytes)(int max_rows);
  void (*prefill_matmul)(Stream, const PrefillMatmulParams&);
};
extern const MatmulKernels kMatmulKernels;

}  // namespace winnow::cuda
