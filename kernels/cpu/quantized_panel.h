#pragma once
#include <cstdint>

#include "kernels/params/matmul.h"

// Panels of quantised matrices (layout: PackedMatrix in params.h).

namespace winnow {

// Part of one group of a panel, or all of it.
struct QuantizedTile {
  Dtype dtype = Dtype::kI4;        // kF8, kI8 or kI4
  const void* codes = nullptr;     // of inputs [0, num_k)
  const float* scales = nullptr;   // [kPanel]
  const int16_t* zeros = nullptr;  // [kPanel]; null for kF8
  // [kPanel] of powers of two, in the place of scales: kI4's codes are e2m1 values. Null: they are not.
  const uint8_t* exponents = nullptr;
  int num_k = 0;  // a multiple of 8
};

// The values of e2m1 codes.
inline constexpr float kE2m1Values[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,  //
                                          -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

namespace {

// Calls use(first_k, tile) for the groups of a panel in order, in pieces of at most max_k inputs, a multiple of 32.
// Internal linkage: see scalar.h.
template <typename Use>
void ForEachTile(const PackedMatrix& matrix, const void* panel, int max_k, const Use& use) {
  const int in_padded = PackedInFeatures(matrix.in_features);
  const auto* at = static_cast<const uint8_t*>(panel);
  for (int group = 0; group < in_padded; group += matrix.group_size) {
    QuantizedTile tile;
    tile.dtype = matrix.dtype;
    if (matrix.mxfp4) {
      tile.exponents = at;
    } else {
      tile.scales = reinterpret_cast<const float*>(at);
      if (matrix.dtype != Dtype::kF8) tile.zeros = reinterpret_cast<const int16_t*>(at + kPanel * sizeof(float));
    }
    at += GroupScaleBytes(matrix);
    const int group_end = group + matrix.group_size < in_padded ? group + matrix.group_size : in_padded;
    for (int k = group; k < group_end; k += tile.num_k) {
      tile.codes = at;
      tile.num_k = group_end - k < max_k ? group_end - k : max_k;
      at += DtypeBytes(matrix.dtype, static_cast<size_t>(tile.num_k) * kPanel);
      use(k, tile);
    }
  }
}

}  // namespace
}  // namespace winnow
