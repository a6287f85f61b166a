#include "kernels/cpu/top_k.h"

#include "kernels/cpu/ordered_key.h"
#include "kernels/cpu/portable/portable.h"

namespace winnow::portable {
namespace {

uint32_t Filter(const float* values, uint32_t n, uint32_t first, float pivot, uint32_t* keys, uint32_t* indices) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    keys[count] = OrderedKey(values[i]);
    indices[count] = first + i;
    count += values[i] >= pivot ? 1 : 0;
  }
  return count;
}

uint32_t CountAtLeast(const uint32_t* keys, uint32_t n, uint32_t least) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i) count += keys[i] >= least ? 1 : 0;
  return count;
}

void Collect(const uint32_t* keys, const uint32_t* indices, uint32_t, TopKThreshold threshold, uint32_t k,
             uint32_t* out) {
  uint32_t taken = 0;
  for (uint32_t i = 0; taken < k; ++i) {
    const bool tie = keys[i] == threshold.key && threshold.ties > 0;
    threshold.ties -= tie ? 1 : 0;
    out[taken] = indices[i];
    taken += tie || keys[i] > threshold.key ? 1 : 0;
  }
}

}  // namespace

void TopK(const TopKParams& params) {
  RunTopK(params, {Filter, CountAtLeast, Collect});
}

}  // namespace winnow::portable
