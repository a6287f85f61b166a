#pragma once
#include <cstdint>
#include <span>

#include "cache_rank/scratch_buffer.h"
#include "common/selection/selection_spec.h"
#include "kernels/kernel_table.h"

namespace winnow {

// The keys of rows [0, num_keys) of one (sequence, layer, kv head), as index tiles.
struct KeyTable {
  const void* const* tiles = nullptr;  // [ceil(num_keys / kBlockTokens)]
  uint32_t num_keys = 0;
  int head_dim = 0;
  Dtype dtype = Dtype::kBf16;
};

// Scaled scores q.k of some queries against all keys of a table.
struct Scores {
  const float* data = nullptr;  // [num_queries, stride]
  int64_t stride = 0;
  const float* row(int query) const { return data + query * stride; }
};

// One pass over the keys for all queries [num_queries, head_dim], rotated, not scaled. The scores lie in `buffer`. The
// bits of a score depend on its query and key alone.
Scores ScoreKeys(const KernelTable& kernels, const KeyTable& keys, const float* queries, int num_queries, float scale,
                 ScratchBuffer<float>& buffer);

// importance[j] for j in [0, num_keys) of a group of query heads that share a kv head: the sum of their softmaxes over
// all num_keys rows, or the largest, or the mean, of their raw scores. Never NaN: scores that are not finite count as
// least important.
void AggregateGroup(const KernelTable& kernels, GroupAggregation aggregation, Scores scores, int num_queries,
                    uint32_t num_keys, float* importance);

}  // namespace winnow
