#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/dtype.h"
#include "kernels/cuda/collective/summands.h"
#include "kernels/cuda/device/stream.h"

namespace winnow::cuda {

// A weight matrix W [out_features, in_features] in device memory as both kinds of product read it (`pack` makes it from
// the row-major form): bf16, row-major as it is; or fp8 e4m3 with one f32 scale per output feature, row-major but for
// the order within each 16 of in_features. in_features is a multiple of 32, data aligned to 16 bytes.
struct DeviceMatrix {
  const void* data = nullptr;     // packed_bytes
  const float* scales = nullptr;  // [out_features], kF8 only
  int out_features = 0;
  int in_features = 0;
  Dtype dtype = Dtype::kBf16;
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
  SummandPlaces summand = {};   // with ranks: f32 y goes there instead, and does not accumulate
  void* scratch = nullptr;      // decode_scratch_bytes; zeroed once when it is allocated
  // At most one block on a multiprocessor, for a product behind a kernel whose blocks do not leave all multiprocessors
  // at once (attention) or leave it no registers (SwiGLU of many rows): otherwise some get two and others none, and so
  // do the products behind. Not for two products in a row, which then do not overlap. Changes no result.
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
  size_t (*packed_bytes)(int out_features, int in_features, Dtype dtype);
  // Row-major bf16 [out, in] in device memory to `matrix.data` (and scales for kF8, powers of two: scale * weight is
  // exact in bf16). bf16 may be packed in place, which does nothing.
  void (*pack)(Stream, const void* row_major, const DeviceMatrix& matrix);
  size_t (*decode_scratch_bytes)(int max_rows, int max_out_features);
  void (*decode_matmul)(Stream, const DecodeMatmulParams&);
  // Of the device that the calling thread is bound to. Call it, and prefill_matmul once for each shape, before capture.
  std::unique_ptr<PrefillPlans> (*open_prefill_plans)();
  size_t (*prefill_workspace_bytes)(int max_rows);
  void (*prefill_matmul)(Stream, const PrefillMatmulParams&);
};
extern const MatmulKernels kMatmulKernels;

}  // namespace winnow::cuda
