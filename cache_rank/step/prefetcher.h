#pragma once
#include <memory>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/select/host/select_head.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Moves rows into pools before they are selected: once the query of (p, l) is there, a temporal prediction for p + 1
// says which rows are likely, and those that are missing are sent with window to spare. It changes what is resident,
// never what is selected.
//
// Why the peer may commit such a frame whenever it comes, between steps or within one: it is posted after the delta of
// (p, l), on the same channel, and before any other of that layer, so the list that attention at layer l reads, or has
// read last, is that of p. Rows go only to pool indices that no row of Sel(p) holds, hence to no slot of that list. The
// image of the pool (HeadResidency) changes when the frame has been posted, not before: a frame that was dropped leaves
// no trace, and every later delta is computed from what the peer will then hold.
//
// Works only when no step waits for anything from this rank, one (sequence, layer) at a time, so that the owner polls
// the transport in between. Data-plane thread; scoring itself runs on the executor.
class Prefetcher {
 public:
  Prefetcher(const SelectionModel& model, const KernelTable* kernels, Executor* executor, const SequenceStore* store,
             Streamer* streamer, CacheRankMetrics* metrics);

  // The query of `position`, whose selection is sparse, is in the layer's ring, and so are its rows.
  void OnQuery(InferenceLink& link, const CachedSequence& sequence, int layer, uint32_t position);

  // Does one (sequence, layer); false when there is none, or something more urgent.
  bool RunOnce(InferenceLinks& links);

 private:
  struct Head {
    std::vector<uint32_t> wanted;  // predicted Sel(position + 1), ascending
    std::vector<QueryHeadMask> wanted_members;
    HeadDelta delta;
  };
  struct Scratch {
    SelectScratch select;
    PrefetchScratch prefetch;
  };

  // Drops tasks that are no longer worth doing; false when that leaves none.
  bool Take(InferenceLink& link);
  void RunHead(int head, int worker);
  void Send(InferenceLink& link);

  const SelectionModel model_;
  const KernelTable* const kernels_;
  Executor* const executor_;
  const SequenceStore* const store_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;

  // The task under way.
  CachedSequence* sequence_ = nullptr;
  int layer_ = 0;
  uint32_t position_ = 0;
  std::vector<Head> heads_;       // [num_kv_heads]
  std::vector<Scratch> scratch_;  // [num_workers]
};

}  // namespace winnow
