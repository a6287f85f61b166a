#include "cache_rank/scorer/captured_mass.h"

#include <algorithm>
#include <cmath>

namespace winnow {

float CapturedMass(const Softmaxes& softmaxes, const float* own_scores, const AttendedSet& attended) {
  double mass = 0;
  for (int i = 0; i < softmaxes.num_queries; ++i) {
    const float* weights = softmaxes.weights + i * softmaxes.stride;
    const float* scales = softmaxes.run_scales + i * SoftmaxRuns(softmaxes.num_keys);
    const auto softmax = [&](uint32_t j) { return double{weights[j]} * scales[j / kSoftmaxRun]; };
    double share = 0;
    for (uint32_t j = 0; j < std::min(attended.sink_tokens, softmaxes.num_keys); ++j) share += softmax(j);
    for (uint32_t j : attended.selected) share += softmax(j);
    for (uint32_t j = attended.recent_start; j < softmaxes.num_keys; ++j) share += softmax(j);
    if (own_scores != nullptr) {
      // exp(own) against exp(lse), the sum of all others.
      const double own = 1 / (1 + std::exp(double{softmaxes.lse[i]} - own_scores[i]));
      share = share * (1 - own) + own;
    }
    mass += share;
  }
  return std::min(static_cast<float>(mass / softmaxes.num_queries), 1.0f);  // NaN stays NaN: not measured
}

}  // namespace winnow
