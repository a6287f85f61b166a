#include "cache_rank/step/selection_batch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

bool SharesBlocks(const CachedSequence& one, const CachedSequence& other, int layer) {
  if (one.shard != other.shard || one.spec != other.spec || SelectsFromAll(one.spec)) return false;
  if (one.kv.rows(layer) < kBlockTokens || other.kv.rows(layer) < kBlockTokens) return false;
  for (size_t head = 0; head < one.num_kv_heads(); ++head) {
    const int h = static_cast<int>(head);
    if (one.kv.tiles(layer, h)[0] == other.kv.tiles(layer, h)[0]) return true;  // streaming heads share none
  }
  return false;
}

Span SpanOf(SelectionWork work) {
  switch (work) {
    case SelectionWork::kSend:
      return Span::kSend;
    case SelectionWork::kSelect:
      return Span::kSelect;
    case SelectionWork::kVerify:
      return Span::kVerify;
  }
  return Span::kSelect;
}

}  // namespace

SelectionBatch::SelectionBatch(size_t max_rows, const MassMeasuring& measuring, const SelectionModel& model,
                               const KernelTable* kernels, Executor* executor, const SequenceStore* store,
                               Streamer* streamer, CacheRankMetrics* metrics, BatchSelector* batch_selector)
    : max_rows_(max_rows),
      model_(model),
      kernels_(kernels),
      executor_(executor),
      streamer_(streamer),
      metrics_(metrics),
      batch_selector_(batch_selector),
      heads_(measuring, model, kernels, kernels->num_workers(*executor), store),
      rows_(kMaxJointRows) {
  WINNOW_CHECK(max_rows <= kMaxJointRows);
}

bool SelectionBatch::CanAdd(SelectionWork work, int layer, const CachedSequence* sequence) const {
  if (num_rows_ == 0) return true;
  if (num_rows_ == rows_.size() || layer != layer_ || work != work_) return false;
  if (sequence == nullptr) return num_rows_ < max_rows_;
  // Shards of other sequences may be of other sizes.
  if (sequence->layout.num_kv_heads != num_kv_heads_) return false;
  if (num_rows_ >= max_rows_ && !SharesBlocks(*rows_[0].sequence, *sequence, layer)) return false;
  const auto in_batch = [&](const BatchRow& row) { return row.sequence == sequence; };
  return std::none_of(rows_.begin(), rows_.begin() + num_rows_, in_batch);
}

void SelectionBatch::Add(SelectionWork work, CachedSequence& sequence, int layer_index, uint32_t position) {
  LayerSelection& layer = sequence.layers[layer_index];
  work_ = work;
  layer_ = layer_index;
  num_kv_heads_ = static_cast<int>(layer.heads.size());
  BatchRow& row = rows_[num_rows_++];
  row.sequence = &sequence;
  row.layer = &layer;
  row.layer_index = layer_index;
  row.position = position;
  row.work = work;
  row.selected_by_batch = false;
  const bool is_planned = sequence.planned.sparse && sequence.planned.position == position;
  row.sends = work != SelectionWork::kVerify && is_planned && layer.sent_position != position;
  row.verifies = work == SelectionWork::kVerify ||
                 (work == SelectionWork::kSelect && is_planned && WaitsForVerification(sequence.spec) &&
                  sequence.SelectsWithOwnQuery(layer_index));
  row.deltas.resize(num_kv_heads_);
  row.partials.resize(num_kv_heads_);
  for (int head = 0; head < num_kv_heads_; ++head) {
    const size_t list = sequence.list(layer_index, head);
    const bool sends = row.sends && sequence.NeedsDelta(list, position);
    const bool verifies = row.verifies && sequence.IsSparse(list, position);
    row.deltas[head] = sends ? streamer_->NewDelta() : nullptr;
    row.partials[head] = verifies ? streamer_->NewPartial() : nullptr;
  }
  row.grew.assign(num_kv_heads_, 0);
}

void SelectionBatch::Run(InferenceLink& link) {
  if (num_rows_ == 0) return;
  const PlannedRow& planned = rows_[0].sequence->planned;
  const uint64_t plan = planned.position == rows_[0].position ? planned.plan : 0;
  const auto span_of = [&](Span span) {
    return TimelineSpan(metrics_->timeline, span, static_cast<uint16_t>(layer_), plan,
                        static_cast<uint32_t>(num_rows_));
  };
  {
    const TimelineSpan span = span_of(SpanOf(work_));
    Select();
  }
  const TimelineSpan span = span_of(Span::kSend);
  for (size_t i = 0; i < num_rows_; ++i) Send(link, rows_[i]);
  streamer_->Pump(link);
}

void SelectionBatch::Select() {
  for (size_t i = 0; i < num_rows_; ++i) {  // corrections read rows where they lie
    const SequenceKv& kv = rows_[i].sequence->kv;
    if (rows_[i].verifies || !kv.keys_have_tiles()) kv.SettleRows(layer_);
  }
  const auto start = std::chrono::steady_clock::now();
  if (work_ == SelectionWork::kSelect && batch_selector_ != nullptr) SelectByBatch();
  GroupRows();
  RunGroups();
  if (work_ == SelectionWork::kSend) return;
  if (work_ == SelectionWork::kSelect) metrics_->selections.Add(num_rows_);
  metrics_->selection_seconds.Add(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  const HeadSelector::KeyBytes bytes = heads_.key_bytes();
  metrics_->scored_key_bytes.Set(bytes.scored);
  metrics_->scored_page_bytes.Set(bytes.of_pages);
  metrics_->shared_key_bytes.Set(bytes.shared);
}

void SelectionBatch::SelectByBatch() {
  const size_t floats = static_cast<size_t>(num_kv_heads_) * model_.group_size * model_.head_dim;
  predicted_.resize(rows_.size() * floats);
  items_.clear();
  for (size_t i = 0; i < num_rows_; ++i) {
    BatchRow& row = rows_[i];
    bool measures = row.verifies;
    for (int head = 0; head < num_kv_heads_; ++head) measures |= heads_.MeasuresMass(row, head);
    if (measures || !batch_selector_->Takes(*row.sequence)) continue;
    const float* queries = row.layer->target.data();
    if (PredictsFromPast(row.sequence->spec.predictor)) {
      float* predicted = predicted_.data() + i * floats;
      PredictFromPast(*kernels_, model_.rope, row.sequence->spec, row.layer->queries, row.position, 0,
                      num_kv_heads_ * model_.group_size, model_.head_dim, predicted);
      queries = predicted;
    }
    items_.push_back({row.sequence, row.layer, row.position, queries});
    row.selected_by_batch = true;
  }
  if (items_.empty()) return;
  if (batch_selector_->Select(layer_, items_).ok()) return;
  batch_selector_ = nullptr;
  for (size_t i = 0; i < num_rows_; ++i) rows_[i].selected_by_batch = false;
}

void SelectionBatch::GroupRows() {
  grouped_rows_.clear();
  group_ends_.clear();
  std::array<bool, kMaxJointRows> taken{};
  // Scores of a group lie in one buffer.
  constexpr size_t kMaxGroupFloats = size_t{1} << 24;
  for (size_t first = 0; first < num_rows_; ++first) {
    if (taken[first]) continue;
    grouped_rows_.push_back(&rows_[first]);
    const auto floats = [&](size_t row) { return size_t{2} * model_.group_size * rows_[row].position; };
    size_t group_floats = floats(first);
    for (size_t i = first + 1; i < num_rows_ && rows_[first].selects(); ++i) {
      if (taken[i] || !rows_[i].selects() || group_floats + floats(i) > kMaxGroupFloats) continue;
      if (!SharesBlocks(*rows_[first].sequence, *rows_[i].sequence, layer_)) continue;
      taken[i] = true;
      group_floats += floats(i);
      grouped_rows_.push_back(&rows_[i]);
    }
    group_ends_.push_back(static_cast<uint32_t>(grouped_rows_.size()));
  }
}

// Behind the heads come indices of workers that help.
void SelectionBatch::RunGroups() {
  const int helpers = work_ == SelectionWork::kSend ? 0 : kernels_->num_workers(*executor_) - 1;
  num_tasks_ = static_cast<int>(group_ends_.size()) * num_kv_heads_;
  heads_.help().Begin(num_tasks_);
  kernels_->parallel_for(
      *executor_, num_tasks_ + helpers,
      [](void* context, int item, int worker) {
        auto& self = *static_cast<SelectionBatch*>(context);
        if (item >= self.num_tasks_) return self.heads_.help().Help();
        self.RunGroup(item, worker);
        self.heads_.help().EndTask();
      },
      this);
}

void SelectionBatch::RunGroup(int item, int worker) {
  const size_t group = item / num_kv_heads_;
  const int head = item % num_kv_heads_;
  const uint32_t begin = group == 0 ? 0 : group_ends_[group - 1];
  const std::span<BatchRow* const> rows(grouped_rows_.data() + begin, group_ends_[group] - begin);
  if (rows.size() > 1) return heads_.RunTogether(rows, head, worker);
  heads_.Run(*rows[0], head, worker);
}

void SelectionBatch::Send(InferenceLink& link, BatchRow& row) {
  if (row.work == SelectionWork::kSelect) {
    if (row.sequence->spec.reuse_interval > 1) row.layer->previous_position = row.layer->selected_position;
    row.layer->selected_position = row.position;
  }
  if (row.sends) row.layer->sent_position = row.position;
  for (int head = 0; row.sends && head < num_kv_heads_; ++head) {
    if (row.deltas[head] == nullptr) continue;
    const HeadDelta& delta = *row.deltas[head];
    if (!std::isnan(delta.captured_mass)) {
      metrics_->ObserveCapturedMass(row.sequence->layer_of_model(layer_), delta.captured_mass,
                                    delta.captured_mass_is_bound);
    }
    streamer_->SendDelta(link, *row.sequence, layer_, head, std::move(row.deltas[head]));
  }
  if (!row.verifies) return;
  row.layer->verified_end = row.position + 1;
  for (int head = 0; head < num_kv_heads_; ++head) {
    if (row.partials[head] == nullptr) continue;
    metrics_->ObserveVerification(row.sequence->layer_of_model(layer_), *row.partials[head], row.grew[head] != 0);
    streamer_->SendPartial(link, *row.sequence, layer_, head, std::move(row.partials[head]));
  }
}

}  // namespace winnow
