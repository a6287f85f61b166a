#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"

namespace winnow::device {

// Slots of rows of int8, whose codes and scales lie apart: the codes of slot i, code_bytes of them, at codes + i *
// code_bytes, and behind those of all slots two f32 for each. Everywhere else a row has its scales behind its codes
// (RowLayout), and a slot is named by the address that it would have if slots did, too: codes + i * (code_bytes + 8).
struct Int8Slots {
  static constexpr size_t kScaleBytes = 2 * sizeof(float);
  void* codes = nullptr;  // null: rows are of another type
  size_t num_slots = 0;
  size_t code_bytes = 0;

  constexpr size_t row_bytes() const { return code_bytes + kScaleBytes; }
  // Of a slot's address, as rows are named; null of null.
  void* codes_at(const void* slot) const {
    if (slot == nullptr) return nullptr;
    const auto offset = static_cast<size_t>(static_cast<const char*>(slot) - static_cast<char*>(codes));
    return static_cast<char*>(codes) + offset / row_bytes() * code_bytes;
  }
  float* scales() const {  // [num_slots][2]
    return reinterpret_cast<float*>(static_cast<char*>(codes) + num_slots * code_bytes);
  }
};

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
  // Rows of int8: row_bytes is that of one or several rows that follow each other, a multiple of 8.
  Int8Slots int8_slots = {};
};

struct RowKernels {
  void (*move_rows)(Stream, const MoveRowsParams&);
};
extern const RowKernels kRowKernels;

}  // namespace winnow::device
