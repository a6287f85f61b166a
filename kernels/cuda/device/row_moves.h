#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/stream.h"

namespace winnow::cuda {

// Copies rows of one size between any two places that the device reaches: slots, arenas, pinned host memory. No row is
// both written and read, or written twice, by one launch.
struct RowMove {
  const void* from;
  void* to;
};
struct MoveRowsParams {
  const RowMove* moves = nullptr;  // [num_moves] device or pinned host memory
  uint32_t num_moves = 0;
  size_t row_bytes = 0;  // a multiple of 16; so are all addresses
};

struct RowKernels {
  void (*move_rows)(Stream, const MoveRowsParams&);
};
extern const RowKernels kRowKernels;

}  // namespace winnow::cuda
