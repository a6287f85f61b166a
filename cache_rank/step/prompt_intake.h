#pragma once
#include <cstddef>
#include <cstdint>

#include "cache_rank/metrics.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Stores rows of prompts, and says so to those who wait for them: the peer (watermark), the selector, and the prefix
// cache once the prompt is complete. Data-plane thread; many rows are shared out over the executor.
class PromptIntake {
 public:
  PromptIntake(SequenceStore* store, Streamer* streamer, Selector* selector, Executor* executor,
               CacheRankMetrics* metrics)
      : store_(store), streamer_(streamer), selector_(selector), executor_(executor), metrics_(metrics) {}

  // Rows [num_kv_heads][count][2 * head_dim] of positions [first, first + count) and one layer of the shard, in host
  // memory. False: they were refused.
  bool Append(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
              const std::byte* rows);

 private:
  SequenceStore* const store_;
  Streamer* const streamer_;
  Selector* const selector_;
  Executor* const executor_;
  CacheRankMetrics* const metrics_;
};

}  // namespace winnow
