#include "kernels/indexer.h"

#include <algorithm>
#include <cmath>

namespace winnow {

void ScoreByIndexer(const KernelTable& kernels, const IndexerScoreParams& params) {
  const float* const weights = params.queries + static_cast<size_t>(params.num_heads) * params.head_dim;
  for (int first = 0; first < params.num_keys; first += kIndexerRun) {
    const int count = std::min(kIndexerRun, params.num_keys - first);
    kernels.key_score({.tiles = params.tiles + first / kBlockTokens,
                       .num_keys = count,
                       .head_dim = params.head_dim,
                       .dtype = params.dtype,
                       .queries = params.queries,
                       .num_queries = params.num_heads,
                       .scale = 1,
                       .scores = params.scratch,
                       .scores_stride = kIndexerRun});
    float* const scores = params.scores + first;
    std::fill_n(scores, count, 0.0f);
    for (int head = 0; head < params.num_heads; ++head) {
      const float* const of_head = params.scratch + static_cast<size_t>(head) * kIndexerRun;
      for (int j = 0; j < count; ++j) scores[j] += weights[head] * std::max(of_head[j], 0.0f);
    }
    for (int j = 0; j < count; ++j) {
      if (std::isnan(scores[j])) scores[j] = 0;
    }
  }
}

}  // namespace winnow
