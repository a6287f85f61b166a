#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/peer_link.h"
#include "cache_rank/select_head.h"
#include "cache_rank/sequence_store.h"
#include "cache_rank/streamer.h"
#include "kernels/kernel_table.h"

namespace winnow {

using PeerLinks = std::map<uint32_t, std::unique_ptr<PeerLink>>;  // by PeerLink::id

// Decides when a (sequence, layer) is scored and when its deltas go out. What is selected is decided by SelectHead
// alone and never depends on the order here.
//
// Inputs of Sel(p, l) become complete at different times:
// Only anchors (attended_set.h) are selected for; the positions up to the next one use the anchor's selection, which is
// sent again where an attachment begins.
//   last, temporal    with the query of (p-1, l): before the plan of p, so its deltas go out the moment the plan
//   arrives depth             with the Layer frame of (p, l - lookahead); layers below lookahead select with their own
//   query exact             with the Layer frame of (p, l)
// Captured mass of p-1, where it is a position to be measured, is measured in the pass that selects for p (for own
// queries: of p, in the pass of p), and reported with p's delta. Deltas that are ready go first, then scoring in the
// order in which inputs came, one batch at a time, so that the owner can poll the transport in between. Data-plane
// thread; scoring itself runs on the executor.
class Selector {
 public:
  struct Options {
    bool measure_captured_mass = true;
    // Captured mass is measured at the first mass_interval positions after the prompt, so that short answers have a
    // figure, and then at positions p with p % mass_interval == 0: measuring with another query than the selecting one
    // costs as much again as selecting. Depends on the position alone, so that what is reported of a sequence does not
    // depend on how it was served. >= 1.
    uint32_t mass_interval = 8;
    size_t batch_rows = 16;  // of one (plan, layer) that are scored between two polls
  };

  Selector(const Options& options, const SelectionModel& model, const KernelTable* kernels, Executor* executor,
           const SequenceStore* store, Streamer* streamer, CacheRankMetrics* metrics);

  // A plan's sparse rows have their seats: sends what is selected already, schedules what can be, refuses what never
  // will be.
  void OnPlan(PeerLink& link, const OpenPlan& plan);
  // The query of `position` is in the layer's ring, and so are its rows: the next position can be predicted from the
  // past.
  void OnQuery(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position);
  // LayerSelection::target holds the query to select with.
  void OnTarget(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position);
  // A plan row broke the protocol, or what it needs did not come: the peer gets kTransferFailed instead of deltas.
  void Refuse(PeerLink& link, uint64_t plan, CachedSequence& sequence, int layer);

  // Does one batch of work; false when there is none that may be done now.
  bool RunOnce(PeerLinks& links);

 private:
  struct Row {
    CachedSequence* sequence;
    LayerSelection* layer;
    uint32_t position;
    bool sends;
    std::vector<std::unique_ptr<HeadDelta>> deltas;  // [num_kv_heads], where it sends
  };

  void Schedule(PeerLink& link, const CachedSequence& sequence, LayerSelection& selection, int layer,
                uint32_t position);
  bool CanPredict(const CachedSequence& sequence, int layer, uint32_t position) const;
  // Takes the tasks at the front of the queue that may run together: one layer, each sequence once. Drops stale ones.
  void TakeBatch(PeerLink& link, RingQueue<SelectionTask>& queue, bool score);
  void RunBatch(PeerLink& link, bool score);
  void RunHead(int item, int worker, bool score);
  void SelectFixed(CachedSequence& sequence, int layer, uint32_t position);
  HeadQuestion Question(const Row& row, int head) const;
  bool Measures(const CachedSequence& sequence, uint32_t position) const;

  const Options options_;
  const SelectionModel model_;
  const KernelTable* const kernels_;
  Executor* const executor_;
  const SequenceStore* const store_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;

  uint32_t last_link_ = 0;  // round robin
  // The batch under way.
  int layer_ = 0;
  int num_kv_heads_ = 0;
  size_t num_rows_ = 0;
  std::vector<Row> rows_;               // num_rows_ in use
  std::vector<SelectScratch> scratch_;  // [num_workers]
};

}  // namespace winnow
