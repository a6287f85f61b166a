#include "cache_rank/scorer/token_scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

constexpr uint32_t kRunKeys = 1024;  // 256 KiB of keys at head_dim 128, bf16
static_assert(kRunKeys % kBlockTokens == 0);

// Overflowed projections give infinite or NaN scores; selection stays defined (and deterministic), the model's output
// is lost anyway.
void ReplaceNan(float* values, uint32_t n) {
  for (uint32_t j = 0; j < n; ++j)
    values[j] = values[j] == values[j] ? values[j] : std::numeric_limits<float>::lowest();
}

}  // namespace

Scores ScoreKeys(const KernelTable& kernels, const KeyTable& keys, const float* queries, int num_queries, float scale,
                 ScratchBuffer<float>& buffer) {
  const int64_t stride = (static_cast<int64_t>(keys.num_keys) + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  float* scores = buffer.Reserve(stride * num_queries);
  // Runs of keys that stay in the second-level cache, for kernels that take more than one pass for many queries.
  for (uint32_t first = 0; first < keys.num_keys; first += kRunKeys) {
    kernels.key_score({.tiles = keys.tiles + first / kBlockTokens,
                       .num_keys = static_cast<int>(std::min(kRunKeys, keys.num_keys - first)),
                       .head_dim = keys.head_dim,
                       .dtype = keys.dtype,
                       .queries = queries,
                       .num_queries = num_queries,
                       .scale = scale,
                       .scores = scores + first,
                       .scores_stride = stride});
  }
  return {scores, stride};
}

void AggregateGroup(const KernelTable& kernels, GroupAggregation aggregation, Scores scores, int num_queries,
                    uint32_t num_keys, float* importance) {
  switch (aggregation) {
    case GroupAggregation::kSoftmaxSum:
      kernels.softmax_sum({.scores = scores.data,
                           .scores_stride = scores.stride,
                           .num_queries = num_queries,
                           .num_keys = static_cast<int>(num_keys),
                           .importance = importance});
      break;
    case GroupAggregation::kMax:
      std::copy_n(scores.row(0), num_keys, importance);
      for (int q = 1; q < num_queries; ++q) {
        for (uint32_t j = 0; j < num_keys; ++j) importance[j] = std::max(importance[j], scores.row(q)[j]);
      }
      break;
    case GroupAggregation::kMean:
      std::copy_n(scores.row(0), num_keys, importance);
      for (int q = 1; q < num_queries; ++q) {
        for (uint32_t j = 0; j < num_keys; ++j) importance[j] += scores.row(q)[j];
      }
      for (uint32_t j = 0; j < num_keys; ++j) importance[j] /= static_cast<float>(num_queries);
      break;
  }
  ReplaceNan(importance, num_keys);
}

}  // namespace winnow
