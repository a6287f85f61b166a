#pragma once
#include <cstdint>

#include "kernels/cpu/quantized_panel.h"
#include "kernels/kernel_table.h"

// Matmul on packed panels: one driver for every instruction set and every number of rows.
//
// An output is sum_k x[k] * w[k] in ascending k from zero, one rounding per step (or per pair of k, with bf16 dot
// products), then bias, then the old y. Register and cache blocking never change that order, so decode and prefill give
// the same bits wherever they use the same micro kernel.
//
// Of quantised panels few rows take the weights as they are unpacked in registers, so that a decode step reads the
// codes and nothing else. More rows share a tile of f32 weights, unpacked once for all of them. Both multiply by the
// same weights in the same order: the bits are those of an f32 matrix with these weights.

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

// acc[r][0..64) = sum over all inputs of x[r][k] * the weights of a quantised panel.
struct QuantizedPanelTask {
  const float* x = nullptr;  // [num_rows, x_stride]
  int64_t x_stride = 0;
  int num_rows = 0;  // at most quantized_rows
  const PackedMatrix& matrix;
  const void* panel = nullptr;
  float* acc = nullptr;  // [num_rows, acc_stride]
  int64_t acc_stride = 0;
};

// The instruction-set specific part.
struct MatmulMicro {
  bool bf16_input = false;  // with bf16 weights, x is rounded and handed to `panel` as bf16
  // Writes the transformed row, PackedInFeatures elements, the padding zero.
  void (*transform_row)(const MatmulParams& params, int row, void* out) = nullptr;
  void (*panel)(const PanelTask& task) = nullptr;
  // Writes f32 weights [num_k][64] of the tile.
  void (*unpack)(const QuantizedTile& tile, float* weights) = nullptr;
  // The most rows that `quantized_panel` takes; 0 where there is none.
  int quantized_rows = 0;
  void (*quantized_panel)(const QuantizedPanelTask& task) = nullptr;
};

void RunMatmul(Executor& executor, const MatmulParams& params, const MatmulMicro& micro);

}  // namespace winnow
