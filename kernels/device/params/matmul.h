#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/dtype.h"
#include "kernels/device/params/all_reduce_terms.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// A weight matrix W [out_features, in_features] in device memory as both kinds of product read it, in one of three
// types:
//   bf16, row-major as it is
//   fp8 e4m3 with one f32 scale per output feature, or per 16 of them and group of inputs
//   int4, unsigned, with an f32 scale and a zero (0 to 16) per output feature and group: weight = (code - zero) * scale
// Codes lie as matmul_codes.h has them, in units of 128 output features by 128 inputs. The scale of an int4 group has
// its zero in its lowest 5 bits. `pack` and `pack_codes` make both from what is row-major. in_features is a multiple of
// 32, of bf16 8; data and scales are aligned to 16 bytes.
struct DeviceMatrix {
  const void* data = nullptr;     // packed_bytes
  const float* scales = nullptr;  // scale_bytes
  int out_features = 0;
  int in_features = 0;
  Dtype dtype = Dtype::kBf16;
  int group_size = 0;  // inputs of a group, one of kMatmulGroups; 0: scales, if any, are of whole rows
};
inline constexpr int kMatmulGroups[] = {128, 64, 32};
// Output features that share the scales of fp8 groups, from a multiple of it on.
inline constexpr int kF8ScaleOutputs = 16;

// What a matrix is packed from where it was quantised before, in device memory: codes of a byte each, and scales by the
// groups of the matrix, or one for each output feature.
struct MatrixCodes {
  const uint8_t* codes = nullptr;  // [out_features, in_features]
  const float* scales = nullptr;   // [out_features, groups]; of fp8 groups those of each 16 output features are alike
  const uint8_t* zeros = nullptr;  // [out_features, groups], kI4 only
};

// y = x W^T (+ y when accumulate), x bf16, sums in f32. Row-invariant: the bits of a row of y depend on that row of x
// and on W alone, for 1 to 64 rows, and are the same on every GPU.
//
// Launched as a programmatic dependent (dependent_launch.cuh): weights are fetched while earlier kernels of the
// stream still run, all else waits for them, so W must not be written by a kernel of the same step. Works under
// capture.
struct DecodeMatmulParams {
  const void* x = nullptr;  // [num_rows, x_stride] bf16, aligned to 16 bytes
  int64_t x_stride = 0;     // a multiple of 8
  int num_rows = 0;         // 1..64
  DeviceMatrix weight;
  bool accumulate = false;  // y is f32 then
  void* y = nullptr;        // [num_rows, y_stride] y_dtype
  int64_t y_stride = 0;
  Dtype y_dtype = Dtype::kF32;  // kF32 or kBf16
  TermPlaces term = {};         // with ranks: f32 y goes there instead, and does not accumulate
  void* scratch = nullptr;      // decode_scratch_bytes; zeroed once when it is allocated
  // At most one block on a multiprocessor, for a product behind a kernel whose blocks do not leave all multiprocessors
  // at once (attention) or leave it no registers (norms and SwiGLU of many rows): otherwise some get two and others
  // none, and it takes twice the time. Not for two products in a row, which then do not overlap. Changes no result.
  bool spread = false;
};

// The library behind prefill_matmul and, for each shape, the algorithm it chose. Belongs to one device and one thread.
class PrefillPlans {
 public:
  virtual ~PrefillPlans() = default;
};

// y = x W^T (+ y when accumulate) for any number of rows, sums in f32. The algorithm of a shape is the same for every
// number of rows and does not split k: a row's bits do not depend on the chunk it comes in, as far as the library
// promises that tiles are independent (matmul_section.cc checks it). They differ from decode_matmul's in the last bits.
struct PrefillMatmulParams {
  PrefillPlans* plans = nullptr;
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
  // Padding included; scales of bf16 take none.
  size_t (*packed_bytes)(int out_features, int in_features, Dtype dtype);
  size_t (*scale_bytes)(int out_features, int in_features, Dtype dtype, int group_size);
  // Row-major bf16 [out, in] in device memory to `matrix.data` and its scales, rounded to the nearest code. Scales of
  // fp8 are powers of two, so that scale * weight is exact in bf16; zeros of int4 are 8. bf16 may be packed in place,
  // which does nothing.
  void (*pack)(Stream, const void* row_major, const DeviceMatrix& matrix);
  // Codes stay what they are. No NaN; of an int4 scale the lowest 5 bits are dropped, which f16 and bf16 do not have.
  void (*pack_codes)(Stream, const MatrixCodes& codes, const DeviceMatrix& matrix);
  size_t (*decode_scratch_bytes)(int max_rows, int max_out_features);
  void (*decode_matmul)(Stream, const DecodeMatmulParams&);
  // Of the device that the calling thread is bound to. Call it, and prefill_matmul once for each shape, before capture.
  std::unique_ptr<PrefillPlans> (*open_prefill_plans)();
  size_t (*prefill_workspace_bytes)(int max_rows);
  void (*prefill_matmul)(Stream, const PrefillMatmulParams&);
};
extern const MatmulKernels kMatmulKernels;

}  // namespace winnow::device
