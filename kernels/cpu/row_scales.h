#pragma once
#include <cstring>

#include "common/base/kv_layout.h"

// Scales of rows of int8 (RowLayout), which hold a key and a value. Internal linkage: see scalar.h.

namespace winnow {
namespace {

inline float KeyScale(const void* row, int head_dim) {
  float scale;
  std::memcpy(&scale, static_cast<const char*>(row) + RowLayout().scales_offset_bytes(head_dim, Dtype::kI8),
              sizeof scale);
  return scale;
}
inline float ValueScale(const void* row, int head_dim) {
  return KeyScale(static_cast<const char*>(row) + sizeof(float), head_dim);
}

}  // namespace
}  // namespace winnow
