#include "cache_rank/step/selector.h"

#include <algorithm>
#include <numeric>

#include "common/base/kv_layout.h"

namespace winnow {

Selector::Selector(const Options& options, const SelectionModel& model, const QueryProjection* projection,
                   const KernelTable* kernels, Executor* executor, const SequenceStore* store, Streamer* streamer,
                   CacheRankMetrics* metrics, BatchSelector* batch_selector)
    : group_size_(model.group_size),
      store_(store),
      streamer_(streamer),
      metrics_(metrics),
      projections_(projection, model.rope, model.head_dim, kernels, executor, store, metrics),
      batch_(options.batch_rows, options, model, kernels, executor, store, streamer, metrics, batch_selector) {}

void Selector::OnPlan(InferenceLink& link, const OpenPlan& plan) {
  // Layer by layer of the model, in the order in which the peer will wait for them: shards may have different ones.
  int end_layer = 0;
  for (const OpenPlan::Row& row : plan.rows) end_layer = std::max(end_layer, row.shard.last_layer() + 1);
  for (int layer = 0; layer < end_layer; ++layer) {
    for (const OpenPlan::Row& row : plan.rows) {
      if (!row.shard.HasLayer(layer)) continue;
      CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
      if (sequence == nullptr || sequence->planned.plan != plan.plan || !sequence->planned.sparse) continue;
      BeginPlanRow(link, plan.plan, *sequence, layer - row.shard.first_layer, row.position);
    }
  }
}

void Selector::BeginPlanRow(InferenceLink& link, uint64_t plan, CachedSequence& sequence, int layer,
                            uint32_t position) {
  if (!sequence.LayerNeedsDelta(layer, position)) return;
  LayerSelection& selection = sequence.layers[layer];
  const uint32_t anchor = sequence.Anchor(position);
  if (sequence.spec.predictor == Predictor::kFixed) SelectFixed(sequence, layer, position);
  if (selection.selected_position == anchor) {
    link.to_send.push_back({sequence.id, sequence.attach_epoch, position, static_cast<uint16_t>(layer)});
  } else if (anchor != position) {
    Refuse(link, plan, sequence, layer);  // it had to restart at the anchor
  } else if (PredictsFromPast(sequence.spec.predictor) && selection.scheduled_position != position) {
    if (CanPredict(sequence, layer, position)) {
      Schedule(link, sequence, selection, layer, position);
    } else {
      Refuse(link, plan, sequence, layer);
    }
  }
}

void Selector::OnQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position) {
  const uint32_t next = position + 1;
  if (!PredictsFromPast(sequence.spec.predictor) || next >= sequence.kv.max_positions()) return;
  if (!sequence.LayerNeedsSelection(layer, next) || !CanPredict(sequence, layer, next)) return;
  Schedule(link, sequence, sequence.layers[layer], layer, next);
}

void Selector::SelectFixed(CachedSequence& sequence, int layer, uint32_t position) {
  LayerSelection& selection = sequence.layers[layer];
  for (size_t head = 0; head < selection.heads.size(); ++head) {
    const size_t list = sequence.list(layer, static_cast<int>(head));
    std::vector<uint32_t>& selected = selection.heads[head].selected;
    selected.resize(sequence.IsSparse(list, position) ? HeadBudget(sequence.spec, list) : 0);
    std::iota(selected.begin(), selected.end(), sequence.spec.sink_tokens);
    if (ListsPerKvHead(sequence.spec, group_size_) == 1) continue;
    selection.heads[head].members.assign(selected.size(), AllQueryHeads(group_size_));
  }
  selection.selected_position = sequence.Anchor(position);
}

void Selector::OnVerifyingQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position) {
  if (!sequence.LayerIsSparse(layer, position)) return;
  if (sequence.kv.rows(layer) <= position) return Refuse(link, sequence.planned.plan, sequence, layer);
  link.to_score.push_back(
      {sequence.id, sequence.attach_epoch, position, static_cast<uint16_t>(layer), /*verifies=*/true});
}

void Selector::OnTarget(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position) {
  if (!sequence.LayerNeedsSelection(layer, position)) return;
  // A verification made with the selecting query takes the position's own row into account.
  const bool verifies = WaitsForVerification(sequence.spec) && sequence.SelectsWithOwnQuery(layer);
  const bool needs_own_row = verifies || SelectsFromAll(sequence.spec);
  if (sequence.kv.rows(layer) < position + (needs_own_row ? 1 : 0))
    return Refuse(link, sequence.planned.plan, sequence, layer);
  Schedule(link, sequence, sequence.layers[layer], layer, position);
}

void Selector::Refuse(InferenceLink& link, uint64_t plan, CachedSequence& sequence, int layer) {
  metrics_->rows_refused.Add(1);
  sequence.planned = {};
  streamer_->SendTransferFailed(link, plan, sequence, layer);
}

bool Selector::CanPredict(const CachedSequence& sequence, int layer, uint32_t position) const {
  return position > 0 && sequence.kv.rows(layer) >= position && sequence.layers[layer].queries.Holds(position - 1);
}

void Selector::Schedule(InferenceLink& link, const CachedSequence& sequence, LayerSelection& selection, int layer,
                        uint32_t position) {
  if (selection.scheduled_position == position || selection.selected_position == position) return;
  selection.scheduled_position = position;
  link.to_score.push_back({sequence.id, sequence.attach_epoch, position, static_cast<uint16_t>(layer)});
}

bool Selector::RunOnce(InferenceLinks& links) {
  for (auto& [id, link] : links) {
    if (link->to_send.empty() || !link->failure.ok() || !streamer_->CanTake(*link)) continue;
    RunBatch(*link, link->to_send, /*sends_only=*/true);
    return true;
  }
  // Links take turns: the one after the last served comes first.
  for (int pass = 0; pass < 2; ++pass) {
    for (auto& [id, link] : links) {
      if ((id > last_link_) != (pass == 0)) continue;
      if (link->to_score.empty() || !link->failure.ok() || !streamer_->CanTake(*link)) continue;
      if (projections_.Run(*link)) return true;
      last_link_ = id;
      RunBatch(*link, link->to_score, /*sends_only=*/false);
      return true;
    }
  }
  return false;
}

void Selector::RunBatch(InferenceLink& link, RingQueue<SelectionTask>& queue, bool sends_only) {
  batch_.Clear();
  while (!queue.empty()) {
    const SelectionTask task = queue.front();
    const SelectionWork work = sends_only      ? SelectionWork::kSend
                               : task.verifies ? SelectionWork::kVerify
                                               : SelectionWork::kSelect;
    CachedSequence* sequence = store_->FindAttached(task.sequence_id, task.attach_epoch, link.id);
    if (!batch_.CanAdd(work, task.layer, sequence)) break;
    if (!sends_only && sequence != nullptr && sequence->layers[task.layer].needs_projection()) break;  // the next batch
    queue.pop_front();
    if (sequence != nullptr && IsValid(work, task, *sequence)) batch_.Add(work, *sequence, task.layer, task.position);
  }
  batch_.Run(link);
}

bool Selector::IsValid(SelectionWork work, const SelectionTask& task, const CachedSequence& sequence) const {
  const LayerSelection& layer = sequence.layers[task.layer];
  if (work == SelectionWork::kSelect) {
    if (PredictsFromPast(sequence.spec.predictor)) return CanPredict(sequence, task.layer, task.position);
    return layer.target_position == task.position;
  }
  const bool is_planned = sequence.planned.sparse && sequence.planned.position == task.position;
  if (!is_planned || layer.selected_position != sequence.Anchor(task.position)) return false;
  return work == SelectionWork::kSend || layer.queries.Holds(task.position);
}

}  // namespace winnow
