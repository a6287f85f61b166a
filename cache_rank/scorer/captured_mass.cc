#include "cache_rank/scorer/captured_mass.h"

#include <algorithm>

namespace winnow {

float CapturedMass(const KernelTable& kernels, Scores scores, int num_queries, const AttendedSet& attended,
                   float* softmax) {
  const uint32_t n = attended.position + 1;
  kernels.softmax_sum({.scores = scores.data,
                       .scores_stride = scores.stride,
                       .num_queries = num_queries,
                       .num_keys = static_cast<int>(n),
                       .importance = softmax});
  double mass = 0;
  for (uint32_t j = 0; j < std::min(attended.sink_tokens, n); ++j) mass += softmax[j];
  for (uint32_t j : attended.selected) mass += softmax[j];
  for (uint32_t j = attended.recent_start; j < n; ++j) mass += softmax[j];
  return std::min(1.0f, static_cast<float>(mass / num_queries));
}

}  // namespace winnow
