#include "kernels/cpu/top_k.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/ordered_key.h"

// A pivot from a sample keeps little more than k candidates in one streaming pass; a search over the bits
// of the keys finds the exact threshold among them. If the sample misled and fewer than k are left, all values become
// candidates: the result never depends on the sample.

namespace winnow {
namespace {

constexpr uint32_t kSamples = 256;
constexpr uint32_t kLeastToSample = 4 * kSamples;

// Bit by bit from the highest: keys are few and lie in the first-level cache, and counting is all that vectors do. Ends
// as soon as a bound parts exactly k keys from the rest.
TopKThreshold SelectThreshold(const uint32_t* keys, uint32_t n, uint32_t k, const TopKPasses& passes) {
  uint32_t key = 0;
  uint32_t above = 0;  // keys known to lie above every key with the prefix so far
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    const uint32_t count = passes.count(keys, n, key | bit);
    if (count == k) return {(key | bit) - 1, 0};
    if (count > k) {
      key |= bit;
    } else {
      above = count;
    }
  }
  return {key, k - above};
}

// A value that, by a sample of every (n / kSamples)-th, has at least k values at or above it, with three standard
// deviations to spare.
float SamplePivot(const float* values, uint32_t n, uint32_t k, const TopKPasses& passes) {
  constexpr float kAll = -std::numeric_limits<float>::infinity();
  if (n < kLeastToSample) return kAll;
  const float expected = static_cast<float>(k) / static_cast<float>(n) * kSamples;
  const uint32_t rank = static_cast<uint32_t>(expected + 3 * std::sqrt(expected) + 3);
  if (rank >= kSamples) return kAll;
  uint32_t samples[kSamples];
  const uint32_t step = n / kSamples;
  for (uint32_t i = 0; i < kSamples; ++i) samples[i] = OrderedKey(values[i * step]);
  return FromOrderedKey(SelectThreshold(samples, kSamples, rank + 1, passes).key);
}

}  // namespace

void RunTopK(const TopKParams& params, const TopKPasses& passes) {
  if (params.last <= params.first || params.k == 0) return;
  const uint32_t n = params.last - params.first;
  if (params.k >= n) {
    for (uint32_t i = 0; i < n; ++i) params.indices[i] = params.first + i;
    return;
  }
  const float* values = params.values + params.first;
  uint32_t* keys = params.scratch;
  uint32_t* candidates = keys + n;
  uint32_t count = passes.filter(values, n, params.first, SamplePivot(values, n, params.k, passes), keys, candidates);
  if (count < params.k) {
    count = passes.filter(values, n, params.first, -std::numeric_limits<float>::infinity(), keys, candidates);
  }
  passes.collect(keys, candidates, count, SelectThreshold(keys, count, params.k, passes), params.k, params.indices);
}

}  // namespace winnow
