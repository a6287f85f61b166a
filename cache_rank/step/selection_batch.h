#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/step/batch_selector.h"
#include "cache_rank/step/head_selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "kernels/kernel_table.h"

namespace winnow {

// The (sequence, layer) of one link that are worked on together: one layer, one kind of work, each sequence once. The
// executor runs their kv heads; what comes of them is sent in the order in which they were added. Reused from batch to
// batch. Data-plane thread.
class SelectionBatch {
 public:
  // Rows that share blocks with the first one are added up to here, beyond the size of a batch: the shared keys are
  // read for them anyway.
  static constexpr size_t kMaxJointRows = 64;

  // Otherwise of at most `max_rows`, which is no more than that. `batch_selector` may be null: then the executor
  // selects for all.
  SelectionBatch(size_t max_rows, const MassMeasuring& measuring, const SelectionModel& model,
                 const KernelTable* kernels, Executor* executor, const SequenceStore* store, Streamer* streamer,
                 CacheRankMetrics* metrics, BatchSelector* batch_selector);

  void Clear() { num_rows_ = 0; }
  // True while it may grow: by `sequence` (null: by one that is not known yet) at that layer of its shard.
  bool CanAdd(SelectionWork work, int layer, const CachedSequence* sequence) const;
  void Add(SelectionWork work, CachedSequence& sequence, int layer, uint32_t position);

  // Does its work, sends what comes of it, and posts what the window admits.
  void Run(InferenceLink& link);

 private:
  // Does the batch's work, of which the rows' deltas and partials are what comes of it.
  void Select();
  // Has the batch selector select for the rows that it can serve: those whose masses are not measured by the selecting
  // pass.
  void SelectByBatch();
  // Lists the rows by what is scored together: those of one specification that begin with the same block.
  void GroupRows();
  void RunGroups();
  void RunGroup(int item, int worker);
  void Send(InferenceLink& link, BatchRow& row);

  // Constant after construction.
  const size_t max_rows_;
  const SelectionModel model_;
  const KernelTable* const kernels_;
  Executor* const executor_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;

  BatchSelector* batch_selector_;  // null after its failure
  HeadSelector heads_;
  // The batch under way.
  SelectionWork work_ = SelectionWork::kSend;
  int layer_ = 0;
  int num_kv_heads_ = 0;
  size_t num_rows_ = 0;
  std::vector<BatchRow> rows_;           // num_rows_ in use
  std::vector<BatchRow*> grouped_rows_;  // group by group
  std::vector<uint32_t> group_ends_;     // in grouped_rows_
  int num_tasks_ = 0;                    // a kv head of a group each
  std::vector<BatchSelector::Item> items_;
  std::vector<float> predicted_;  // [rows] queries that items_ refer to
};

}  // namespace winnow
