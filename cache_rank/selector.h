#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cache_rank/batch_selector.h"
#include "cache_rank/judge_head.h"
#include "cache_rank/metrics.h"
#include "cache_rank/peer_link.h"
#include "cache_rank/projection_batch.h"
#include "cache_rank/select_head.h"
#include "cache_rank/sequence_store.h"
#include "cache_rank/streamer.h"
#include "common/selection/mass_positions.h"
#include "kernels/kernel_table.h"

namespace winnow {

using PeerLinks = std::map<uint32_t, std::unique_ptr<PeerLink>>;  // by PeerLink::id

// Decides when a (sequence, layer) is scored and when its deltas go out. What is selected is decided by SelectHead
// alone and never depends on the order here.
//
// Inputs of Sel(p, l) become complete at different times:
//   last, temporal: with the query of (p-1, l): before the plan of p, so its deltas go out the moment the plan arrives
//   depth:          with the Layer frame of (p, l - lookahead), which carries the query, or the residual that it is
//                   projected from here; layers below lookahead select with their own query
//   exact:          with the Layer frame of (p, l)
// Only anchors (attended_set.h) are selected for; the positions up to the next one use the anchor's selection, which is
// sent again where an attachment begins.
// Captured mass of p-1, where it is a position to be measured, is measured in the pass that selects for p (for own
// queries: of p, in the pass of p), and reported with p's delta. Sequences that wait for verdicts have every position
// judged by its real query instead (JudgeHead): in the pass that selects where that is the selecting query, otherwise
// in a pass of its own once the query has come, always after Sel(p, l) and before Sel(p+1, l), because both wait in one
// queue in that order. Deltas that are ready go first, then scoring in the
// order in which inputs came, one batch at a time, so that the owner can poll the transport in between. Data-plane
// thread; scoring itself runs on the executor.
class Selector {
 public:
  static constexpr size_t kMaxJointRows = 64;
  struct Options {
    bool measure_captured_mass = true;
    uint32_t mass_interval = kMassInterval;  // of MeasuresMass
    // From every key, also where the scorer reads fewer and a bound would do.
    bool measure_exactly = false;
    // Of one (plan, layer) that are scored between two polls; rows that share blocks with the first one, up to
    // kMaxJointRows, come on top, as the shared keys are read for them anyway.
    size_t batch_rows = 16;
  };

  // `projection` may be null: then no sequence's specification may ask for it. `elsewhere` may be null, too: then the
  // executor selects for all.
  Selector(const Options& options, const SelectionModel& model, const QueryProjection* projection,
           const KernelTable* kernels, Executor* executor, const SequenceStore* store, Streamer* streamer,
           CacheRankMetrics* metrics, BatchSelector* elsewhere = nullptr);

  // A plan's sparse rows have their seats: sends what is selected already, schedules what can be, refuses what never
  // will be.
  void OnPlan(PeerLink& link, const OpenPlan& plan);
  // The query of `position` is in the layer's ring, and so are its rows: the next position can be predicted from the
  // past.
  void OnQuery(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position);
  // The real query of `position`, a sparse one of a sequence that waits for verdicts, is in the layer's ring.
  void OnVerdictQuery(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position);
  // LayerSelection::target holds the query to select with, or LayerSelection::hidden what it is projected from.
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
    bool judges;
    bool selected = false;                               // elsewhere
    std::vector<std::unique_ptr<HeadDelta>> deltas;      // [num_kv_heads], where it sends
    std::vector<std::unique_ptr<HeadPartial>> partials;  // [num_kv_heads], where it judges
    std::vector<uint8_t> grew;                           // [num_kv_heads] by its verdict
  };

  void Schedule(PeerLink& link, const CachedSequence& sequence, LayerSelection& selection, int layer,
                uint32_t position);
  bool CanPredict(const CachedSequence& sequence, int layer, uint32_t position) const;
  // Takes the tasks at the front of the queue that may run together: one layer, each sequence once. Drops stale ones.
  void TakeBatch(PeerLink& link, RingQueue<SelectionTask>& queue, bool score);
  bool IsValid(const SelectionTask& task, const CachedSequence& sequence, bool score) const;
  void RunBatch(PeerLink& link, bool score);
  // Has the rows selected for elsewhere that can be: those whose masses are not measured by the selecting pass.
  void SelectElsewhere();
  // Lists the rows of the batch by what is scored together: those of one specification that begin with the same block.
  void GroupRows(bool score);
  void RunGroup(int item, int worker, bool score);
  void RunHead(Row& row, int head, int worker, bool score);
  void SelectTogether(std::span<const uint32_t> rows, int head, int worker);
  void SelectFixed(CachedSequence& sequence, int layer, uint32_t position);
  void SelectRow(Row& row, int head, int worker, bool score);
  void KeepPrevious(Row& row, int head);
  // What has been selected goes into the row's delta, with the captured mass of the position before.
  void FillDelta(Row& row, int head, int worker, CapturedMassFigure previous);
  bool SharesBlocks(const CachedSequence& one, const CachedSequence& other, int layer) const;
  void JudgeRow(Row& row, int head, int worker);
  void SendRow(PeerLink& link, Row& row, bool score);
  HeadQuestion Question(const Row& row, int head) const;
  bool Measures(const CachedSequence& sequence, uint32_t position) const;

  const Options options_;
  const SelectionModel model_;
  const KernelTable* const kernels_;
  Executor* const executor_;
  const SequenceStore* const store_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;
  BatchSelector* elsewhere_;  // null after its failure

  ProjectionBatch projections_;
  uint32_t last_link_ = 0;  // round robin
  // The batch under way.
  int layer_ = 0;
  int num_kv_heads_ = 0;
  bool judges_only_ = false;  // its rows are selected already
  size_t num_rows_ = 0;
  std::vector<Row> rows_;               // num_rows_ in use
  std::vector<uint32_t> grouped_rows_;  // group by group
  std::vector<uint32_t> group_ends_;    // in grouped_rows_
  std::vector<BatchSelector::Item> items_;
  std::vector<float> predicted_;        // [rows] queries that items_ refer to
  std::vector<SelectScratch> scratch_;  // [num_workers]
  std::vector<JudgeScratch> judge_scratch_;
};

}  // namespace winnow
