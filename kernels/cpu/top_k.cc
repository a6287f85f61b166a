#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace winnow {
namespace {

constexpr int kDigitBits = 11;  // three digits of 11, 11 and 10 bits
constexpr uint32_t kBins = 1u << kDigitBits;

// Larger floats have larger keys; -0 and +0 have one key, as they compare equal.
inline uint32_t OrderedKey(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// The k-th largest key and how many keys equal to it belong to the k largest.
struct Threshold {
  uint32_t key = 0;
  uint32_t ties = 0;
};

// Radix selection from the top digit down. `candidates` (n words) receives the keys that share the digits fixed so far.
Threshold SelectThreshold(const float* values, uint32_t n, uint32_t k, uint32_t* histogram, uint32_t* candidates) {
  std::memset(histogram, 0, 2 * kBins * sizeof(uint32_t));
  // Two histograms: neighbours often share a bin, and one counter would wait for its own store.
  uint32_t i = 0;
  for (; i + 2 <= n; i += 2) {
    ++histogram[OrderedKey(values[i]) >> 21];
    ++histogram[kBins + (OrderedKey(values[i + 1]) >> 21)];
  }
  if (i < n) ++histogram[OrderedKey(values[i]) >> 21];
  for (uint32_t bin = 0; bin < kBins; ++bin) histogram[bin] += histogram[kBins + bin];

  uint32_t wanted = k;
  const auto descend = [&](uint32_t bins) {
    uint32_t bin = bins - 1;
    while (histogram[bin] < wanted) wanted -= histogram[bin--];
    return bin;
  };
  uint32_t prefix = descend(kBins);
  uint32_t count = 0;
  for (i = 0; i < n; ++i) {
    const uint32_t key = OrderedKey(values[i]);
    candidates[count] = key;
    count += key >> 21 == prefix ? 1 : 0;
  }

  std::memset(histogram, 0, kBins * sizeof(uint32_t));
  for (i = 0; i < count; ++i) ++histogram[candidates[i] >> 10 & (kBins - 1)];
  prefix = prefix << kDigitBits | descend(kBins);

  constexpr uint32_t kLastBins = 1u << 10;
  std::memset(histogram, 0, kLastBins * sizeof(uint32_t));
  for (i = 0; i < count; ++i) {
    if (candidates[i] >> 10 == prefix) ++histogram[candidates[i] & (kLastBins - 1)];
  }
  prefix = prefix << 10 | descend(kLastBins);
  return {prefix, wanted};
}

}  // namespace

void TopK(const TopKParams& params) {
  if (params.last <= params.first || params.k == 0) return;
  const uint32_t n = params.last - params.first;
  if (params.k >= n) {
    for (uint32_t i = 0; i < n; ++i) params.indices[i] = params.first + i;
    return;
  }
  const float* values = params.values + params.first;
  static_assert(TopKScratchWords(0) >= 2 * kBins);
  Threshold threshold = SelectThreshold(values, n, params.k, params.scratch, params.scratch + 2 * kBins);
  uint32_t count = 0;
  for (uint32_t i = 0; count < params.k; ++i) {
    const uint32_t key = OrderedKey(values[i]);
    bool take = key > threshold.key;
    if (key == threshold.key && threshold.ties > 0) {
      --threshold.ties;
      take = true;
    }
    params.indices[count] = params.first + i;
    count += take ? 1 : 0;
  }
}

}  // namespace winnow
