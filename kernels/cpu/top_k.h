#pragma once
#include <cstdint>

#include "kernels/params.h"

namespace winnow {

// Keeps the values of [0, n) that are >= pivot, in order: their ordered keys (OrderedKey) and first + index. Returns
// how many. `keys` and `indices` hold n words each.
using TopKFilter = uint32_t (*)(const float* values, uint32_t n, uint32_t first, float pivot, uint32_t* keys,
                                uint32_t* indices);

void RunTopK(const TopKParams& params, TopKFilter filter);

}  // namespace winnow
