#pragma once
#include <cstdint>

#include "cache_rank/step/prefetcher.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "common/base/kv_layout.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Keeps the queries that arrive, rotated, where selections find them (LayerSelection), and tells the selector and the
// prefetcher. Layers are the shard's; queries are [num_query_heads, head_dim] of it, before RoPE. Data-plane thread.
class QueryIntake {
 public:
  // `hidden_size` of the residuals that may come; 0: none may.
  QueryIntake(const KvLayout& layout, int hidden_size, const RopeShape& rope, const KernelTable* kernels,
              Selector* selector, Prefetcher* prefetcher)
      : head_dim_(layout.head_dim),
        hidden_size_(hidden_size),
        rope_(rope),
        kernels_(kernels),
        selector_(selector),
        prefetcher_(prefetcher) {}

  // The step that the sequence is planned in cannot do without the layer's query.
  static bool NeedsQuery(const CachedSequence& sequence, int layer);
  // The layer's own query.
  void TakeQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position, const float* query);
  // What the model's indexer scores keys with at the layer, of a sequence that it selects for.
  void TakeIndexQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position, const float* query);
  // What a Layer frame predicts for the layer `lookahead` behind it, either as a query or as the residual that it is
  // projected from; both may be null. Refuses the row when what it needs does not come.
  void TakeTarget(InferenceLink& link, const wire::FrameHeader& header, CachedSequence& sequence, uint32_t position,
                  const float* prediction, const float* hidden);
  // Of a prompt's positions [first, first + count).
  void TakePromptQueries(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                         const float* queries);

 private:
  void Rotate(const CachedSequence& sequence, const float* query, uint32_t position, float* rotated) const;

  const int head_dim_;
  const int hidden_size_;
  const RopeShape rope_;
  const KernelTable* const kernels_;
  Selector* const selector_;
  Prefetcher* const prefetcher_;
};

}  // namespace winnow
