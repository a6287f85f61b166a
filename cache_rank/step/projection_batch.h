#pragma once
#include "cache_rank/metrics.h"
#include "cache_rank/select/predictor/from_past.h"
#include "cache_rank/select/predictor/query_projection.h"
#include "cache_rank/select/scorer/scratch_buffer.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Projects the residuals that scoring tasks at the front of a link's queue wait for, all rows of a layer in one matmul.
// It is a batch of work of its own: the owner polls the transport between it and the scoring. Data-plane thread.
class ProjectionBatch {
 public:
  // `projection` may be null: then nothing ever waits.
  ProjectionBatch(const QueryProjection* projection, const RopeShape& rope, int head_dim, const KernelTable* kernels,
                  Executor* executor, const SequenceStore* store, CacheRankMetrics* metrics)
      : projection_(projection),
        rope_(rope),
        head_dim_(head_dim),
        kernels_(kernels),
        executor_(executor),
        store_(store),
        metrics_(metrics) {}

  // Fills LayerSelection::target of the front tasks of to_score, which stay queued. False when none of them waits.
  bool Run(InferenceLink& link);

 private:
  struct Row {
    const CachedSequence* sequence;
    LayerSelection* layer;
    uint32_t position;
  };

  const QueryProjection* const projection_;
  const RopeShape rope_;
  const int head_dim_;
  const KernelTable* const kernels_;
  Executor* const executor_;
  const SequenceStore* const store_;
  CacheRankMetrics* const metrics_;

  std::vector<Row> rows_;  // of the batch under way
  ScratchBuffer<float> hidden_, queries_;
};

}  // namespace winnow
