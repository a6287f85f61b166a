#pragma once
#include <cstdint>

#include "kernels/params.h"

namespace winnow {

// Keeps the values of [0, n) that are >= pivot, in order: their ordered keys (OrderedKey) and first + index. Returns
// how many. `keys` and `indices` hold n words each.
using TopKFilter = uint32_t (*)(const float* values, uint32_t n, uint32_t first, float pivot, uint32_t* keys,
                                uint32_t* indices);

// How many of n keys are at least `least`.
using TopKCount = uint32_t (*)(const uint32_t* keys, uint32_t n, uint32_t least);

void RunTopK(const TopKParams& params, TopKFilter filter, TopKCount count_at_least);

}  // namespace winnow
