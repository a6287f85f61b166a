#pragma once
#include <cstdint>
#include <span>

#include "cache_rank/index/index_layout.h"
#include "cache_rank/select/scorer/loop_help.h"
#include "cache_rank/select/scorer/scratch_buffer.h"
#include "common/selection/selection_spec.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Scores of some queries against all keys of a table.
struct Scores {
  const float* data = nullptr;  // [num_queries, stride]
  int64_t stride = 0;
  const float* row(int query) const { return data + query * stride; }
};

// Floats from one query's scores to the next one's.
int64_t ScoresStride(uint32_t num_keys);

// One pass over the keys for all queries [num_queries, head_dim], rotated, not scaled. The scores lie in `buffer`. The
// bits of a score depend on its query and key alone. `help` may be null.
Scores ScoreKeys(const KernelTable& kernels, const KeyTable& keys, const float* queries, int num_queries,
                 ScoreForm form, ScratchBuffer<float>& buffer, LoopHelp::Loop* help = nullptr);

// Softmaxes of some queries over all keys of a table, as KeySoftmaxParams describes them.
struct Softmaxes {
  const float* weights = nullptr;  // [num_queries, stride]
  int64_t stride = 0;
  const float* run_scales = nullptr;  // [num_queries, SoftmaxRuns(num_keys)]
  const float* lse = nullptr;         // [num_queries]
  int num_queries = 0;
  uint32_t num_keys = 0;

  // Key j's share of the softmax of query i.
  double Share(int i, uint32_t j) const {
    return double{weights[i * stride + j]} * run_scales[i * SoftmaxRuns(num_keys) + j / kSoftmaxRun];
  }
  // The same of keys [first, first + count) together.
  double Share(int i, uint32_t first, uint32_t count) const;
  // Those of queries [first, first + count).
  Softmaxes Slice(int first, int count) const {
    return {weights + first * stride, stride, run_scales + first * SoftmaxRuns(num_keys), lse + first, count, num_keys};
  }
};

struct SoftmaxScratch {
  ScratchBuffer<float> weights, run_scales, run_sums, lse;
};

// As ScoreKeys, with the exp of each score taken in the same pass.
Softmaxes SoftmaxKeys(const KernelTable& kernels, const KeyTable& keys, const float* queries, int num_queries,
                      ScoreForm form, SoftmaxScratch& scratch, LoopHelp::Loop* help = nullptr);

// importance[j] for j in [first, last) of a group of query heads that share a kv head. Never NaN: what is not finite
// counts as least important.
//
// The sum of their softmaxes:
void SumSoftmaxes(const KernelTable& kernels, const Softmaxes& softmaxes, uint32_t first, uint32_t last,
                  float* importance);
// The largest, or the mean, of their raw scores:
void AggregateScores(GroupAggregation aggregation, Scores scores, int num_queries, uint32_t first, uint32_t last,
                     float* importance);

}  // namespace winnow
