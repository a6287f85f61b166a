#pragma once
#include <string>

#include "absl/status/status.h"
#include "common/model/quantized/stored_weight.h"
#include "kernels/kernel_table.h"

namespace winnow {

// One head's part of the projection of latents to keys and values, [num_heads, nope_dim + value_dim, rank], in a form
// that meets keys as rows hold them (LatentShape): turned and with zeros where keys turn (key_up), or with zeros where
// they do (value_up).
struct LatentSlice {
  std::string tensor;
  LatentShape shape;
  int num_heads = 0;
  int head = 0;
  int nope_dim = 0;
  int value_dim = 0;
  bool values = false;  // value_up; otherwise key_up
};

// Packs the slice of `weight` into `destination`. Of the first head's keys it checks that the whole weight is finite.
absl::Status PackLatentSlice(const StoredWeight& weight, const KernelTable& kernels, const LatentSlice& slice,
                             const PackedMatrix& matrix, void* destination);

}  // namespace winnow
