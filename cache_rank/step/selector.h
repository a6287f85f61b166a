#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include "cache_rank/metrics.h"
#include "cache_rank/step/batch_selector.h"
#include "cache_rank/step/projection_batch.h"
#include "cache_rank/step/selection_batch.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "kernels/kernel_table.h"

namespace winnow {

using InferenceLinks = std::map<uint32_t, std::unique_ptr<InferenceLink>>;  // by InferenceLink::id

// Decides when a (sequence, layer) is scored and when its deltas go out; SelectionBatch does it. What is selected is
// decided by SelectHead alone and never depends on the order here.
//
// Inputs of Sel(p, l) become complete at different times:
//   last, temporal: with the query of (p-1, l): before the plan of p, so its deltas go out the moment the plan arrives
//   depth:          with the Layer frame of (p, l - lookahead), which carries the query, or the residual that it is
//                   projected from here; layers below lookahead select with their own query
//   exact:          with the Layer frame of (p, l)
// Only anchors (attended_set.h) are selected for; the positions up to the next one use the anchor's selection, which is
// sent again where an attachment begins.
// Captured mass of p-1, where it is a position to be measured, is measured in the pass that selects for p (for own
// queries: of p, in the pass of p), and reported with p's delta. Sequences that wait for verifications have every
// position verified with its real query instead (VerifyHead): in the pass that selects where that is the selecting
// query, otherwise in a pass of its own once the query has come, always after Sel(p, l) and before Sel(p+1, l), because
// both wait in one queue in that order. Deltas that are ready go first, then scoring in the order in which inputs came,
// one batch at a time, so that the owner can poll the transport in between. Data-plane thread; scoring itself runs on
// the executor.
class Selector {
 public:
  struct Options : MassMeasuring {
    // Of one (plan, layer) that are scored between two polls; rows that share blocks with the first one come on top
    // (SelectionBatch::kMaxJointRows).
    size_t batch_rows = 16;
  };

  // `projection` may be null: then no sequence's specification may ask for it. `batch_selector` may be null, too: then
  // the executor selects for all.
  Selector(const Options& options, const SelectionModel& model, const QueryProjection* projection,
           const KernelTable* kernels, Executor* executor, const SequenceStore* store, Streamer* streamer,
           CacheRankMetrics* metrics, BatchSelector* batch_selector = nullptr);

  // A plan's sparse rows are known: sends what is selected already, schedules what can be, refuses what never
  // will be.
  void OnPlan(InferenceLink& link, const OpenPlan& plan);
  // The query of `position` is in the layer's ring, and so are its rows: the next position can be predicted from the
  // past.
  void OnQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position);
  // The real query of `position`, a sparse one of a sequence that waits for verifications, is in the layer's ring.
  void OnVerifyingQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position);
  // LayerSelection::target holds the query to select with, or LayerSelection::hidden what it is projected from.
  void OnTarget(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position);
  // A plan row broke the protocol, or what it needs did not come: the peer gets kTransferFailed instead of deltas.
  void Refuse(InferenceLink& link, uint64_t plan, CachedSequence& sequence, int layer);

  // Does one batch of work; false when there is none that may be done now.
  bool RunOnce(InferenceLinks& links);

 private:
  // One layer, of the shard, of a row of the plan that has come.
  void BeginPlanRow(InferenceLink& link, uint64_t plan, CachedSequence& sequence, int layer, uint32_t position);
  void Schedule(InferenceLink& link, const CachedSequence& sequence, LayerSelection& selection, int layer,
                uint32_t position);
  bool CanPredict(const CachedSequence& sequence, int layer, uint32_t position) const;
  // The first rows [0, budget) behind the sinks, which need no scores.
  void SelectFixed(CachedSequence& sequence, int layer, uint32_t position);
  // Takes the tasks at the front of the queue that may run together, and runs them. Drops stale ones.
  void RunBatch(InferenceLink& link, RingQueue<SelectionTask>& queue, bool sends_only);
  bool IsValid(SelectionWork work, const SelectionTask& task, const CachedSequence& sequence) const;

  // Constant after construction.
  const int group_size_;
  const SequenceStore* const store_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;

  ProjectionBatch projections_;
  SelectionBatch batch_;
  uint32_t last_link_ = 0;  // round robin
};

}  // namespace winnow
