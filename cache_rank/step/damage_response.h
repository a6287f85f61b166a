#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/streamer.h"

namespace winnow {

// What becomes of sequences of which a damaged row was found: they are given up, and whoever decodes them is told so
// (kFencedForDamage), before anything that was read of them has left; the block is not shared again. They are computed
// anew from their tokens, which the router has, or go on with their replica. Data-plane thread.
class DamageResponse {
 public:
  // Told of each sequence that is given up, and for the log of the row that was found.
  using OnDamage = std::function<void(uint64_t sequence_id, const std::string& what)>;

  DamageResponse(KvBlockPool* pool, SequenceStore* store, Streamer* streamer, CacheRankMetrics* metrics,
                 OnDamage on_damage)
      : pool_(pool), store_(store), streamer_(streamer), metrics_(metrics), on_damage_(std::move(on_damage)) {}

  // Gives up the sequences that have been found damaged since the last call; returns their numbers.
  std::vector<uint64_t> Respond(InferenceLinks& links);

 private:
  void GiveUp(const CachedSequence& sequence, const DamagedRow& row, InferenceLinks& links);

  KvBlockPool* const pool_;
  SequenceStore* const store_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;
  const OnDamage on_damage_;
  uint64_t responded_ = 0;  // of the pool's count of damages
};

}  // namespace winnow
