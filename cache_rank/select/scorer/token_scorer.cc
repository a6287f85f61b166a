#include "cache_rank/select/scorer/token_scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

KeyScoreParams ScoreParams(const KeyTable& keys, const float* queries, int num_queries, ScoreForm form,
                           ScratchBuffer<float>& buffer) {
  const int64_t stride = ScoresStride(keys.num_keys);
  return {.tiles = keys.tiles,
          .num_keys = static_cast<int>(keys.num_keys),
          .head_dim = keys.head_dim,
          .dtype = keys.dtype,
          .in_rows = keys.in_rows,
          .queries = queries,
          .num_queries = num_queries,
          .scale = form.scale,
          .score_cap = form.cap,
          .scores = buffer.Reserve(stride * num_queries),
          .scores_stride = stride,
          .groups = keys.groups};
}

// Keys that one thread of several scores: few, so that threads end at about the same time, and no fewer than pay for
// laying out the queries once more and for the first keys, which nothing has prefetched.
constexpr uint32_t kKeysOfPart = 512;

void ScoreInParts(const KernelTable& kernels, const KeyScoreParams& all, LoopHelp::Loop& help) {
  const auto num_keys = static_cast<uint32_t>(all.num_keys);
  help.Run((num_keys + kKeysOfPart - 1) / kKeysOfPart, [&](size_t part) {
    const uint32_t first = static_cast<uint32_t>(part) * kKeysOfPart;
    KeyScoreParams params = all;
    if (all.groups == nullptr) {
      params.tiles += first / kBlockTokens;
    } else {
      params.groups += first / kKeyGroup;
    }
    params.num_keys = static_cast<int>(std::min(kKeysOfPart, num_keys - first));
    params.scores += first;
    kernels.key_score(params);
  });
}

bool PaysInParts(const KeyTable& keys, const LoopHelp::Loop* help) {
  return help != nullptr && keys.num_keys > kKeysOfPart && help->has_help();
}

}  // namespace

// Scores of a query lie one cache line further into a page than the one before's, so that rows of a power of two do not
// compete for the same lines of the first-level cache.
int64_t ScoresStride(uint32_t num_keys) {
  constexpr int64_t kLine = 64 / sizeof(float);
  return (static_cast<int64_t>(num_keys) + kBlockTokens - 1) / kBlockTokens * kBlockTokens + kLine;
}

double Softmaxes::Share(int i, uint32_t first, uint32_t count) const {
  const float* row = weights + i * stride;
  double share = 0;
  while (count > 0) {
    const uint32_t run = first / kSoftmaxRun, n = std::min<uint32_t>(count, (run + 1) * kSoftmaxRun - first);
    double sums[4] = {};  // of every fourth weight: additions that do not wait for one another
    for (uint32_t j = 0; j < n; ++j) sums[j % 4] += row[first + j];
    share += ((sums[0] + sums[1]) + (sums[2] + sums[3])) * run_scales[i * SoftmaxRuns(num_keys) + run];
    first += n;
    count -= n;
  }
  return share;
}

Scores ScoreKeys(const KernelTable& kernels, const KeyTable& keys, const float* queries, int num_queries,
                 ScoreForm form, ScratchBuffer<float>& buffer, LoopHelp::Loop* help) {
  const KeyScoreParams params = ScoreParams(keys, queries, num_queries, form, buffer);
  if (PaysInParts(keys, help)) {
    ScoreInParts(kernels, params, *help);
  } else {
    kernels.key_score(params);
  }
  return {params.scores, params.scores_stride};
}

Softmaxes SoftmaxKeys(const KernelTable& kernels, const KeyTable& keys, const float* queries, int num_queries,
                      ScoreForm form, SoftmaxScratch& scratch, LoopHelp::Loop* help) {
  const size_t runs = num_queries * SoftmaxRuns(keys.num_keys);
  const KeySoftmaxParams params{.score = ScoreParams(keys, queries, num_queries, form, scratch.weights),
                                .run_scales = scratch.run_scales.Reserve(runs),
                                .lse = scratch.lse.Reserve(num_queries),
                                .scratch = scratch.run_sums.Reserve(runs)};
  if (PaysInParts(keys, help)) {
    ScoreInParts(kernels, params.score, *help);
    help->Run(num_queries, [&](size_t query) {
      const size_t first_run = query * SoftmaxRuns(keys.num_keys);
      kernels.score_softmax({.scores = params.score.scores + query * params.score.scores_stride,
                             .scores_stride = params.score.scores_stride,
                             .num_queries = 1,
                             .num_keys = params.score.num_keys,
                             .run_scales = params.run_scales + first_run,
                             .lse = params.lse + query,
                             .scratch = params.scratch + first_run});
    });
  } else {
    kernels.key_softmax(params);
  }
  return {params.score.scores, params.score.scores_stride, params.run_scales, params.lse, num_queries, keys.num_keys};
}

void SumSoftmaxes(const KernelTable& kernels, const Softmaxes& softmaxes, uint32_t first, uint32_t last,
                  float* importance) {
  kernels.softmax_sum({.weights = softmaxes.weights,
                       .weights_stride = softmaxes.stride,
                       .run_scales = softmaxes.run_scales,
                       .num_queries = softmaxes.num_queries,
                       .num_keys = static_cast<int>(softmaxes.num_keys),
                       .first = static_cast<int>(first),
                       .last = static_cast<int>(last),
                       .importance = importance});
}

void AggregateScores(GroupAggregation aggregation, Scores scores, int num_queries, uint32_t first, uint32_t last,
                     float* importance) {
  constexpr float kLeast = std::numeric_limits<float>::lowest();
  std::copy(scores.row(0) + first, scores.row(0) + last, importance + first);
  // Query by query, in loops that vectors do.
  for (int q = 1; q < num_queries; ++q) {
    const float* const row = scores.row(q);
    if (aggregation == GroupAggregation::kMax) {
      for (uint32_t j = first; j < last; ++j) importance[j] = std::max(importance[j], row[j]);
    } else {
      for (uint32_t j = first; j < last; ++j) importance[j] += row[j];
    }
  }
  const float count = aggregation == GroupAggregation::kMean ? static_cast<float>(num_queries) : 1;
  // Overflowed projections give infinite or NaN scores; selection stays defined (and deterministic), the model's output
  // is lost anyway.
  for (uint32_t j = first; j < last; ++j) {
    const float value = importance[j] / count;
    importance[j] = std::isnan(value) ? kLeast : value;
  }
}

}  // namespace winnow
