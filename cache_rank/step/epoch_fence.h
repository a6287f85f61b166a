#pragma once
#include <cstdint>

#include "cache_rank/metrics.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"

namespace winnow {

// Keeps out frames of sequences that the peer does not hold any more. Data-plane thread.
class EpochFence {
 public:
  EpochFence(const SequenceStore* store, Streamer* streamer, CacheRankMetrics* metrics)
      : store_(store), streamer_(streamer), metrics_(metrics) {}

  // The sequence, when it is attached to this link with this epoch. Otherwise null, and the peer is told kFenced, once
  // per (sequence, epoch); but not when it has re-attached the sequence itself.
  CachedSequence* Holder(InferenceLink& link, uint64_t sequence_id, uint32_t attach_epoch);

 private:
  const SequenceStore* const store_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;
};

}  // namespace winnow
