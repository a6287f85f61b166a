#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

// Rows of KV and of activations, copied and added. What holds for all parameters stands in kernels/kernel_table.h.

namespace winnow {

// Copies rows: out[i] = blocks[position / 32][position % 32].
struct GatherRowsParams {
  const void* const* blocks = nullptr;  // [num_blocks] -> [32, row_bytes]
  const uint32_t* positions = nullptr;  // [num_rows]
  uint32_t num_rows = 0;
  size_t row_bytes = 0;
  void* out = nullptr;  // [num_rows, row_bytes]
};

// Copies rows: slot_pool[slots[i]] = rows[i].
struct ScatterRowsParams {
  const void* rows = nullptr;  // [num_rows, row_bytes]
  const uint32_t* slots = nullptr;
  uint32_t num_rows = 0;
  size_t row_bytes = 0;
  void* slot_pool = nullptr;
};

// Tokens to rows of activations: out[i] = scale * table[ids[i]].
struct EmbedParams {
  const void* table = nullptr;  // [vocab_size, hidden_size] row-major, as stored in the checkpoint
  Dtype dtype = Dtype::kBf16;   // kF32, kBf16 or kF16
  int hidden_size = 0;
  const uint32_t* token_ids = nullptr;  // [num_rows]
  int num_rows = 0;
  float scale = 1;
  float* out = nullptr;  // [num_rows, hidden_size]
};

// Adds normalised rows: y += x * rsqrt(mean(x^2) + eps) * norm_weight.
struct AddNormedParams {
  const float* x = nullptr;  // [num_rows, width]
  int num_rows = 0;
  int width = 0;
  const float* norm_weight = nullptr;  // [width]
  float norm_epsilon = 0;
  float* y = nullptr;  // [num_rows, width]
};

}  // namespace winnow
