#pragma once
#include <cstdint>

#include "kernels/params/keys.h"

namespace winnow {

// The k-th largest key: the k largest are the keys above `key` and the first `ties` of those equal to it.
struct TopKThreshold {
  uint32_t key = 0;
  uint32_t ties = 0;
};

// The passes over values and keys, for one instruction set.
struct TopKPasses {
  // Keeps the values of [0, n) that are >= pivot, in order: their ordered keys (OrderedKey) and first + index. Returns
  // how many. `keys` and `indices` hold n words each.
  uint32_t (*filter)(const float* values, uint32_t n, uint32_t first, float pivot, uint32_t* keys, uint32_t* indices);
  // How many of n keys are at least `least`.
  uint32_t (*count)(const uint32_t* keys, uint32_t n, uint32_t least);
  // The indices of the k largest of n keys, in order.
  void (*collect)(const uint32_t* keys, const uint32_t* indices, uint32_t n, TopKThreshold threshold, uint32_t k,
                  uint32_t* out);
};

void RunTopK(const TopKParams& params, const TopKPasses& passes);

}  // namespace winnow
