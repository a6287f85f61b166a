#pragma once
#include <cstdint>

#include "kernels/kernel_table.h"

// Matmul on packed panels: one driver for every instruction set and every number of rows.
//
// An output is sum_k x[k] * w[k] in ascending k from zero, one rounding per step (or per pair of k, with bf16 dot
// products), then bias, then the old y. Register and cache blocking never change that order, so decode and prefill give
// the same bits wherever they use the same micro kernel.

namespace winnow {

// acc[r][0..64) = (resume ? acc : 0) + sum over num_k of x[r][k] * panel[k][0..64).
struct PanelTask {
  const void* x = nullptr;  // [num_rows, x_stride], as transform_row writes it
  int64_t x_stride = 0;     // in elements
  int num_rows = 0;
  const void* panel = nullptr;  // of weight dtype; bf16 [num_k/2][64][2], f32 [num_k][64]
  Dtype dtype = Dtype::kBf16;
  int num_k = 0;         // even
  float* acc = nullptr;  // [num_rows, acc_stride]
  int64_t acc_stride = 0;
  bool resume = false;
};

// The instruction-set specific part.
struct MatmulMicro {
  bool bf16_input = false;  // with bf16 weights, x is rounded and handed to `panel` as bf16
  // Writes the transformed row, PackedInFeatures elements, the padding zero.
  void (*transform_row)(const MatmulParams& params, int row, void* out) = nullptr;
  void (*panel)(const PanelTask& task) = nullptr;
};

void RunMatmul(Executor& executor, const MatmulParams& params, const MatmulMicro& micro);

}  // namespace winnow
