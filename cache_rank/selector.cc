#include "cache_rank/selector.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include "cache_rank/select_union.h"
#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

// What is known of the mass that the position before `position` captured.
CapturedMassFigure PreviousMass(const HeadSelection& head, uint32_t position) {
  return head.mass_position + 1 == position ? head.mass : CapturedMassFigure();
}

// Keeps what a selection for `position` has measured, and returns the mass of the position before.
CapturedMassFigure TakeMass(HeadSelection& head, const HeadQuestion& question, const CapturedMassFigure& measured,
                            uint32_t position) {
  const CapturedMassFigure previous = PreviousMass(head, position);
  if (question.measured == nullptr) return previous;
  head.mass = measured;
  head.mass_position = question.measured_position;
  return question.measured_position + 1 == position ? measured : previous;
}

}  // namespace

Selector::Selector(const Options& options, const SelectionModel& model, const QueryProjection* projection,
                   const KernelTable* kernels, Executor* executor, const SequenceStore* store, Streamer* streamer,
                   CacheRankMetrics* metrics, BatchSelector* elsewhere)
    : options_(options),
      model_(model),
      kernels_(kernels),
      executor_(executor),
      store_(store),
      streamer_(streamer),
      metrics_(metrics),
      elsewhere_(elsewhere),
      projections_(projection, model.rope, model.head_dim, kernels, executor, store, metrics),
      rows_(std::max(options.batch_rows, kMaxJointRows)),
      scratch_(kernels->num_workers(*executor)),
      judge_scratch_(scratch_.size()) {}

void Selector::OnPlan(PeerLink& link, const OpenPlan& plan) {
  // Layer by layer, in the order in which the peer will wait for them.
  size_t layers = 0;
  for (int layer = 0; layer == 0 || layer < static_cast<int>(layers); ++layer) {
    for (const OpenPlan::Row& row : plan.rows) {
      CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
      if (sequence == nullptr || sequence->seat.plan != plan.plan || !sequence->seat.sparse) continue;
      layers = sequence->layers.size();
      if (!sequence->LayerNeedsDelta(layer, row.position)) continue;
      LayerSelection& selection = sequence->layers[layer];
      const uint32_t anchor = sequence->Anchor(row.position);
      if (sequence->spec.predictor == Predictor::kFixed) SelectFixed(*sequence, layer, row.position);
      if (selection.selected_position == anchor) {
        link.to_send.push_back({sequence->id, sequence->attach_epoch, row.position, static_cast<uint16_t>(layer)});
      } else if (anchor != row.position) {
        Refuse(link, plan.plan, *sequence, layer);  // it had to restart at the anchor
      } else if (PredictsFromPast(sequence->spec.predictor) && selection.scheduled_position != row.position) {
        if (CanPredict(*sequence, layer, row.position)) {
          Schedule(link, *sequence, selection, layer, row.position);
        } else {
          Refuse(link, plan.plan, *sequence, layer);
        }
      }
    }
  }
}

void Selector::OnQuery(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position) {
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
    if (ListsPerHead(sequence.spec, model_) == 1) continue;
    selection.heads[head].members.assign(selected.size(), AllQueryHeads(model_.group_size));
  }
  selection.selected_position = sequence.Anchor(position);
}

void Selector::OnVerdictQuery(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position) {
  if (!sequence.LayerIsSparse(layer, position)) return;
  if (sequence.kv.rows(layer) <= position) return Refuse(link, sequence.seat.plan, sequence, layer);
  link.to_score.push_back(
      {sequence.id, sequence.attach_epoch, position, static_cast<uint16_t>(layer), /*judges=*/true});
}

void Selector::OnTarget(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position) {
  if (!sequence.LayerNeedsSelection(layer, position)) return;
  // A verdict made with the selecting query takes the position's own row into account.
  const bool judges = WaitsForVerdict(sequence.spec) && sequence.SelectsWithOwnQuery(layer);
  if (sequence.kv.rows(layer) < position + (judges ? 1 : 0)) return Refuse(link, sequence.seat.plan, sequence, layer);
  Schedule(link, sequence, sequence.layers[layer], layer, position);
}

void Selector::Refuse(PeerLink& link, uint64_t plan, CachedSequence& sequence, int layer) {
  metrics_->rows_refused.Add(1);
  sequence.seat = {};
  streamer_->SendTransferFailed(link, plan, sequence, layer);
}

bool Selector::CanPredict(const CachedSequence& sequence, int layer, uint32_t position) const {
  return position > 0 && sequence.kv.rows(layer) >= position && sequence.layers[layer].queries.Holds(position - 1);
}

void Selector::Schedule(PeerLink& link, const CachedSequence& sequence, LayerSelection& selection, int layer,
                        uint32_t position) {
  if (selection.scheduled_position == position || selection.selected_position == position) return;
  selection.scheduled_position = position;
  link.to_score.push_back({sequence.id, sequence.attach_epoch, position, static_cast<uint16_t>(layer)});
}

bool Selector::RunOnce(PeerLinks& links) {
  for (auto& [id, link] : links) {
    if (link->to_send.empty() || !link->failure.ok() || !streamer_->CanTake(*link)) continue;
    TakeBatch(*link, link->to_send, /*score=*/false);
    RunBatch(*link, /*score=*/false);
    return true;
  }
  // Links take turns: the one after the last served comes first.
  for (int pass = 0; pass < 2; ++pass) {
    for (auto& [id, link] : links) {
      if ((id > last_link_) != (pass == 0)) continue;
      if (link->to_score.empty() || !link->failure.ok() || !streamer_->CanTake(*link)) continue;
      if (projections_.Run(*link)) return true;
      last_link_ = id;
      TakeBatch(*link, link->to_score, /*score=*/true);
      RunBatch(*link, /*score=*/true);
      return true;
    }
  }
  return false;
}

bool Selector::IsValid(const SelectionTask& task, const CachedSequence& sequence, bool score) const {
  const LayerSelection& layer = sequence.layers[task.layer];
  const bool has_seat = sequence.seat.sparse && sequence.seat.position == task.position;
  if (task.judges) {
    const bool selected = layer.selected_position == sequence.Anchor(task.position);
    return has_seat && selected && layer.queries.Holds(task.position);
  }
  if (!score) return has_seat && layer.selected_position == sequence.Anchor(task.position);
  if (PredictsFromPast(sequence.spec.predictor)) return CanPredict(sequence, task.layer, task.position);
  return layer.target_position == task.position;
}

void Selector::TakeBatch(PeerLink& link, RingQueue<SelectionTask>& queue, bool score) {
  num_rows_ = 0;
  while (!queue.empty() && num_rows_ < rows_.size()) {
    const SelectionTask task = queue.front();
    if (num_rows_ > 0 && (task.layer != layer_ || task.judges != judges_only_)) break;
    CachedSequence* sequence = store_->FindAttached(task.sequence_id, task.attach_epoch, link.id);
    // Shards of other sequences may be of other sizes.
    if (num_rows_ > 0 && sequence != nullptr && sequence->layout.num_kv_heads != num_kv_heads_) break;
    const bool is_full = num_rows_ >= options_.batch_rows;
    if (is_full && (sequence == nullptr || !SharesBlocks(*rows_[0].sequence, *sequence, task.layer))) break;
    const auto in_batch = [&](const Row& row) { return row.sequence == sequence; };
    if (sequence != nullptr && std::any_of(rows_.begin(), rows_.begin() + num_rows_, in_batch)) break;
    if (score && sequence != nullptr && sequence->layers[task.layer].needs_projection()) break;  // the next batch
    queue.pop_front();
    if (sequence == nullptr || !IsValid(task, *sequence, score)) continue;
    LayerSelection& layer = sequence->layers[task.layer];
    const bool has_seat = sequence->seat.sparse && sequence->seat.position == task.position;
    Row& row = rows_[num_rows_++];
    layer_ = task.layer;
    judges_only_ = task.judges;
    num_kv_heads_ = static_cast<int>(layer.heads.size());
    row.sequence = sequence;
    row.layer = &layer;
    row.position = task.position;
    row.selected = false;
    row.sends = !task.judges && has_seat && layer.sent_position != task.position;
    row.judges = task.judges ||
                 (score && has_seat && WaitsForVerdict(sequence->spec) && sequence->SelectsWithOwnQuery(task.layer));
    row.deltas.resize(num_kv_heads_);
    row.partials.resize(num_kv_heads_);
    for (int head = 0; head < num_kv_heads_; ++head) {
      const size_t list = sequence->list(layer_, head);
      const bool sends = row.sends && sequence->NeedsDelta(list, task.position);
      const bool judges = row.judges && sequence->IsSparse(list, task.position);
      row.deltas[head] = sends ? streamer_->NewDelta() : nullptr;
      row.partials[head] = judges ? streamer_->NewPartial() : nullptr;
    }
    row.grew.assign(num_kv_heads_, 0);
  }
}

bool Selector::Measures(const CachedSequence& sequence, uint32_t position) const {
  if (!options_.measure_captured_mass) return false;
  return MeasuresMass(sequence.spec, position, sequence.prompt_tokens, options_.mass_interval);
}

HeadQuestion Selector::Question(const Row& row, int head) const {
  const CachedSequence& sequence = *row.sequence;
  const LayerSelection& layer = *row.layer;
  const int first_head = head * model_.group_size;
  const size_t offset = static_cast<size_t>(first_head) * model_.head_dim;
  HeadQuestion question{.spec = &sequence.spec,
                        .position = row.position,
                        .budget_tokens = layer.heads[head].growth.BudgetAt(row.position),
                        .index = sequence.kv.index(layer_, head),
                        .first_query_head = first_head,
                        .measures_exactly = options_.measure_exactly,
                        .prompt_tokens = sequence.prompt_tokens};
  if (PredictsFromPast(sequence.spec.predictor)) {
    question.ring = &layer.queries;
  } else {
    question.target = layer.target.data() + offset;
  }
  const bool own_query = sequence.SelectsWithOwnQuery(layer_);
  const uint32_t measured = own_query ? row.position : row.position - 1;
  if (WaitsForVerdict(sequence.spec)) {
    if (!row.judges || !SelectsTopKOfRows(sequence.spec)) return question;  // the verdict has a pass of its own
    question.measured = question.target;
    question.measured_position = row.position;
    return question;
  }
  if (!Measures(sequence, measured)) return question;
  if (own_query) {
    if (sequence.kv.rows(layer_) <= row.position) return question;
    question.measured = question.target;
    question.measured_position = row.position;
  } else if (layer.selected_position == sequence.Anchor(measured) && layer.queries.Holds(measured) &&
             sequence.IsSparse(sequence.list(layer_, head), measured)) {
    question.measured = layer.queries.rotated(row.position - 1) + offset;
    question.measured_position = row.position - 1;
  }
  return question;
}

bool Selector::SharesBlocks(const CachedSequence& one, const CachedSequence& other, int layer) const {
  if (one.shard != other.shard || one.spec != other.spec) return false;
  if (one.kv.rows(layer) < kBlockTokens || other.kv.rows(layer) < kBlockTokens) return false;
  for (size_t head = 0; head < one.num_kv_heads(); ++head) {
    const int h = static_cast<int>(head);
    if (one.kv.tiles(layer, h)[0] == other.kv.tiles(layer, h)[0]) return true;  // streaming heads share none
  }
  return false;
}

void Selector::GroupRows(bool score) {
  grouped_rows_.clear();
  group_ends_.clear();
  const bool selects = score && !judges_only_;
  std::array<bool, kMaxJointRows> taken{};
  // Scores of a group lie in one buffer.
  constexpr size_t kMaxGroupFloats = size_t{1} << 24;
  for (size_t first = 0; first < num_rows_; ++first) {
    if (taken[first]) continue;
    grouped_rows_.push_back(static_cast<uint32_t>(first));
    const auto floats = [&](size_t row) { return size_t{2} * model_.group_size * rows_[row].position; };
    size_t group_floats = floats(first);
    for (size_t i = first + 1; selects && i < num_rows_ && !rows_[first].selected; ++i) {
      if (taken[i] || rows_[i].selected || group_floats + floats(i) > kMaxGroupFloats) continue;
      if (!SharesBlocks(*rows_[first].sequence, *rows_[i].sequence, layer_)) continue;
      taken[i] = true;
      group_floats += floats(i);
      grouped_rows_.push_back(static_cast<uint32_t>(i));
    }
    group_ends_.push_back(static_cast<uint32_t>(grouped_rows_.size()));
  }
}

void Selector::RunGroup(int item, int worker, bool score) {
  const size_t group = item / num_kv_heads_;
  const int head = item % num_kv_heads_;
  const uint32_t begin = group == 0 ? 0 : group_ends_[group - 1];
  const std::span<const uint32_t> rows(grouped_rows_.data() + begin, group_ends_[group] - begin);
  if (rows.size() > 1) return SelectTogether(rows, head, worker);
  RunHead(rows_[rows[0]], head, worker, score);
}

void Selector::RunHead(Row& row, int head, int worker, bool score) {
  if (!row.sequence->IsSparse(row.sequence->list(layer_, head), row.position)) return;
  const uint64_t read_before = scratch_[worker].scored_key_bytes;
  if (!judges_only_) SelectRow(row, head, worker, score);
  if (row.judges) JudgeRow(row, head, worker);
  row.layer->heads[head].scored_key_bytes += scratch_[worker].scored_key_bytes - read_before;
}

void Selector::SelectTogether(std::span<const uint32_t> rows, int head_index, int worker) {
  std::vector<UnionTask> tasks;
  std::vector<Row*> asked;
  for (const uint32_t r : rows) {
    Row& row = rows_[r];
    if (!row.sequence->IsSparse(row.sequence->list(layer_, head_index), row.position)) continue;
    HeadSelection& head = row.layer->heads[head_index];
    KeepPrevious(row, head_index);
    tasks.push_back({Question(row, head_index), &head.selected, &head.members, {}});
    asked.push_back(&row);
  }
  if (tasks.empty()) return;
  const uint64_t read_before = scratch_[worker].scored_key_bytes;
  SelectUnions(*kernels_, model_, tasks, scratch_[worker]);
  // What they read together counts for the first one.
  asked[0]->layer->heads[head_index].scored_key_bytes += scratch_[worker].scored_key_bytes - read_before;
  for (size_t i = 0; i < tasks.size(); ++i) {
    Row& row = *asked[i];
    HeadSelection& head = row.layer->heads[head_index];
    FillDelta(row, head_index, worker, TakeMass(head, tasks[i].question, tasks[i].mass, row.position));
    if (!row.judges) continue;
    const uint64_t judge_before = scratch_[worker].scored_key_bytes;
    JudgeRow(row, head_index, worker);
    head.scored_key_bytes += scratch_[worker].scored_key_bytes - judge_before;
  }
}

void Selector::KeepPrevious(Row& row, int head_index) {
  if (row.sequence->spec.reuse_interval <= 1) return;
  HeadSelection& head = row.layer->heads[head_index];
  head.previous = head.selected;
  head.previous_members = head.members;
}

void Selector::SelectRow(Row& row, int head_index, int worker, bool score) {
  HeadSelection& head = row.layer->heads[head_index];
  // What goes into this position's entry is the mass of the one before.
  CapturedMassFigure previous = PreviousMass(head, row.position);
  if (score && !row.selected) {
    const HeadQuestion question = Question(row, head_index);
    KeepPrevious(row, head_index);
    const CapturedMassFigure figure =
        SelectUnion(*kernels_, model_, question, scratch_[worker], &head.selected, &head.members);
    previous = TakeMass(head, question, figure, row.position);
  }
  FillDelta(row, head_index, worker, previous);
}

void Selector::FillDelta(Row& row, int head_index, int worker, CapturedMassFigure previous) {
  if (row.deltas[head_index] == nullptr) return;
  const CachedSequence& sequence = *row.sequence;
  HeadSelection& head = row.layer->heads[head_index];
  const size_t list = sequence.list(layer_, head_index);
  HeadDelta& delta = *row.deltas[head_index];
  const SelectionSpec& spec = sequence.spec;
  if (head.residency.pool_slots() == 0) {
    const uint32_t known = IdentityRows(spec, row.position, sequence.prompt_tokens, sequence.attach_position);
    head.residency.Resize(sequence.pool_slots[list]);
    head.residency.SetIdentity(spec.sink_tokens, std::min(known, sequence.pool_slots[list]));
  }
  const uint32_t ring = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens);
  head.residency.Update(*kernels_, head.selected, row.position, ring, scratch_[worker].top_k, &delta);
  delta.members = head.members;
  if (spec.transfer == Transfer::kFull) HeadResidency::SendAll(head.selected, &delta);
  const RowTiers* tiers = store_->tiers();
  head.working_set.Record(delta.streamed_positions, tiers == nullptr ? 1 : tiers->admit_rows());
  // Masses of judged positions went with their verdicts.
  if (WaitsForVerdict(spec)) previous = {};
  delta.captured_mass = previous.mass;
  delta.captured_mass_is_bound = previous.is_lower_bound;
}

void Selector::JudgeRow(Row& row, int head_index, int worker) {
  const CachedSequence& sequence = *row.sequence;
  HeadSelection& head = row.layer->heads[head_index];
  const size_t offset = static_cast<size_t>(head_index) * model_.group_size * model_.head_dim;
  const float* query = judges_only_ ? row.layer->queries.rotated(row.position) : row.layer->target.data();
  HeadTrial trial{.spec = &sequence.spec,
                  .position = row.position,
                  .prompt_tokens = sequence.prompt_tokens,
                  .budget_tokens = head.growth.BudgetAt(row.position),
                  .index = sequence.kv.index(layer_, head_index),
                  .row_blocks = sequence.kv.row_blocks(layer_, head_index),
                  .query = query + offset,
                  .selected = head.selected,
                  .mass_of_top_k = {}};
  if (!judges_only_ && SelectsTopKOfRows(sequence.spec)) trial.mass_of_top_k = head.mass.mass;
  HeadPartial& partial = *row.partials[head_index];
  JudgeHead(*kernels_, model_, trial, scratch_[worker], judge_scratch_[worker], &partial);
  row.grew[head_index] = head.growth.Record(row.position, partial.rows_needed);
}

void Selector::RunBatch(PeerLink& link, bool score) {
  if (num_rows_ == 0) return;
  const uint64_t plan = rows_[0].sequence->seat.position == rows_[0].position ? rows_[0].sequence->seat.plan : 0;
  const TimelineSpan span(metrics_->timeline,
                          !score         ? Span::kSend
                          : judges_only_ ? Span::kVerdict
                                         : Span::kSelect,
                          static_cast<uint16_t>(layer_), plan, static_cast<uint32_t>(num_rows_));
  struct Context {
    Selector* selector;
    bool score;
  } context{this, score};
  for (size_t i = 0; i < num_rows_; ++i) {  // corrections read rows where they lie
    if (rows_[i].judges) rows_[i].sequence->kv.SettleRows(layer_);
  }
  const auto start = std::chrono::steady_clock::now();
  if (score && !judges_only_ && elsewhere_ != nullptr) SelectElsewhere();
  GroupRows(score);
  kernels_->parallel_for(
      *executor_, static_cast<int>(group_ends_.size()) * num_kv_heads_,
      [](void* opaque, int item, int worker) {
        const auto* context = static_cast<Context*>(opaque);
        context->selector->RunGroup(item, worker, context->score);
      },
      &context);
  if (score) {
    if (!judges_only_) metrics_->selections.Add(num_rows_);
    metrics_->selection_seconds.Add(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    uint64_t scored = 0, of_pages = 0, shared = 0;
    for (const SelectScratch& scratch : scratch_) {
      scored += scratch.scored_key_bytes + scratch.measured_key_bytes;
      of_pages += scratch.page_key_bytes;
      shared += scratch.shared_key_bytes;
    }
    metrics_->scored_key_bytes.Set(scored);
    metrics_->scored_page_bytes.Set(of_pages);
    metrics_->shared_key_bytes.Set(shared);
  }
  for (size_t i = 0; i < num_rows_; ++i) SendRow(link, rows_[i], score);
  streamer_->Pump(link);
}

void Selector::SelectElsewhere() {
  const size_t floats = static_cast<size_t>(num_kv_heads_) * model_.group_size * model_.head_dim;
  predicted_.resize(rows_.size() * floats);
  items_.clear();
  for (size_t i = 0; i < num_rows_; ++i) {
    Row& row = rows_[i];
    bool measures = row.judges;
    for (int head = 0; head < num_kv_heads_; ++head) measures |= Question(row, head).measured != nullptr;
    if (measures || !elsewhere_->Takes(*row.sequence)) continue;
    const float* queries = row.layer->target.data();
    if (PredictsFromPast(row.sequence->spec.predictor)) {
      float* predicted = predicted_.data() + i * floats;
      PredictFromPast(*kernels_, model_.rope, row.sequence->spec, row.layer->queries, row.position, 0,
                      num_kv_heads_ * model_.group_size, model_.head_dim, predicted);
      queries = predicted;
    }
    items_.push_back({row.sequence, row.layer, row.position, queries});
    row.selected = true;
  }
  if (items_.empty()) return;
  if (elsewhere_->Select(layer_, items_).ok()) return;
  elsewhere_ = nullptr;
  for (size_t i = 0; i < num_rows_; ++i) rows_[i].selected = false;
}

void Selector::SendRow(PeerLink& link, Row& row, bool score) {
  if (score && !judges_only_) {
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
  if (!row.judges) return;
  row.layer->judged_end = row.position + 1;
  for (int head = 0; head < num_kv_heads_; ++head) {
    if (row.partials[head] == nullptr) continue;
    metrics_->ObserveVerdict(row.sequence->layer_of_model(layer_), *row.partials[head], row.grew[head] != 0);
    streamer_->SendPartial(link, *row.sequence, layer_, head, std::move(row.partials[head]));
  }
}

}  // namespace winnow
