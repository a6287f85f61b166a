#pragma once
#include <cstdint>

#include "kernels/cuda/select/top_k_cut.cuh"

namespace winnow::device {

// Bins of equal width between two values, which spread values of both signs as bins of keys would not. The last two
// also hold what is above, the first what is below. Never descending along the keys, whatever the two values are: where
// the width is no number, all columns may lie in one bin.
template <uint32_t kCount>
struct ValueBins {
  float least, bins_per_unit;

  static __device__ __forceinline__ ValueBins Between(uint32_t least_key, uint32_t greatest_key) {
    const float least = FromOrderedKey(least_key);
    return {least, static_cast<float>(kCount - 2) / (FromOrderedKey(greatest_key) - least)};
  }
  __device__ __forceinline__ uint32_t Of(uint32_t key) const {
    return min(__float2uint_rz((FromOrderedKey(key) - least) * bins_per_unit), kCount - 1);
  }
};

}  // namespace winnow::device
