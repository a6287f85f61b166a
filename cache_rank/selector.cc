#include "cache_rank/selector.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {

Selector::Selector(const Options& options, const SelectionModel& model, const KernelTable* kernels, Executor* executor,
                   const SequenceStore* store, Streamer* streamer, CacheRankMetrics* metrics)
    : options_(options),
      model_(model),
      kernels_(kernels),
      executor_(executor),
      store_(store),
      streamer_(streamer),
      metrics_(metrics),
      rows_(options.batch_rows),
      scratch_(kernels->num_workers(*executor)) {}

void Selector::OnPlan(PeerLink& link, const OpenPlan& plan) {
  // Layer by layer, in the order in which the peer will wait for them.
  size_t layers = 0;
  for (int layer = 0; layer == 0 || layer < static_cast<int>(layers); ++layer) {
    for (const OpenPlan::Row& row : plan.rows) {
      CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
      if (sequence == nullptr || sequence->seat.plan != plan.plan || !sequence->seat.sparse) continue;
      layers = sequence->layers.size();
      if (!PredictsFromPast(sequence->spec.predictor)) continue;
      LayerSelection& selection = sequence->layers[layer];
      if (selection.selected_position == row.position) {
        link.to_send.push_back({sequence->id, sequence->attach_epoch, row.position, static_cast<uint16_t>(layer)});
      } else if (selection.scheduled_position != row.position) {
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
  if (AttendsEverything(next, sequence.spec, kBlockTokens) || !CanPredict(sequence, layer, next)) return;
  Schedule(link, sequence, sequence.layers[layer], layer, next);
}

void Selector::OnTarget(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position) {
  if (sequence.kv.rows(layer) < position) return Refuse(link, sequence.seat.plan, sequence, layer);
  Schedule(link, sequence, sequence.layers[layer], layer, position);
}

void Selector::Refuse(PeerLink& link, uint64_t plan, CachedSequence& sequence, int layer) {
  metrics_->rows_refused.Add(1);
  sequence.seat = {};
  streamer_->SendTransferFailed(link, plan, sequence.id, sequence.attach_epoch, layer);
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
      last_link_ = id;
      TakeBatch(*link, link->to_score, /*score=*/true);
      RunBatch(*link, /*score=*/true);
      return true;
    }
  }
  return false;
}

void Selector::TakeBatch(PeerLink& link, RingQueue<SelectionTask>& queue, bool score) {
  num_rows_ = 0;
  while (!queue.empty() && num_rows_ < rows_.size()) {
    const SelectionTask task = queue.front();
    if (num_rows_ > 0 && task.layer != layer_) break;
    CachedSequence* sequence = store_->FindAttached(task.sequence_id, task.attach_epoch, link.id);
    const auto in_batch = [&](const Row& row) { return row.sequence == sequence; };
    if (sequence != nullptr && std::any_of(rows_.begin(), rows_.begin() + num_rows_, in_batch)) break;
    queue.pop_front();
    if (sequence == nullptr) continue;
    LayerSelection& layer = sequence->layers[task.layer];
    const bool from_past = PredictsFromPast(sequence->spec.predictor);
    const bool has_seat = sequence->seat.sparse && sequence->seat.position == task.position;
    const bool valid =
        score ? (from_past ? CanPredict(*sequence, task.layer, task.position) : layer.target_position == task.position)
              : has_seat && layer.selected_position == task.position;
    if (!valid) continue;
    Row& row = rows_[num_rows_++];
    layer_ = task.layer;
    num_kv_heads_ = static_cast<int>(layer.heads.size());
    row.sequence = sequence;
    row.layer = &layer;
    row.position = task.position;
    row.sends = has_seat && layer.sent_position != task.position;
    row.deltas.resize(num_kv_heads_);
    for (std::unique_ptr<HeadDelta>& delta : row.deltas) delta = row.sends ? streamer_->NewDelta() : nullptr;
  }
}

HeadQuestion Selector::Question(const Row& row, int head) const {
  const CachedSequence& sequence = *row.sequence;
  const LayerSelection& layer = *row.layer;
  const int first_head = head * model_.group_size;
  const size_t offset = static_cast<size_t>(first_head) * model_.head_dim;
  HeadQuestion question{.spec = &sequence.spec,
                        .position = row.position,
                        .tiles = sequence.kv.tiles(layer_, head),
                        .first_query_head = first_head};
  if (PredictsFromPast(sequence.spec.predictor)) {
    question.ring = &layer.queries;
  } else {
    question.target = layer.target.data() + offset;
  }
  const bool own_query = SelectsWithOwnQuery(sequence.spec, layer_);
  const uint32_t measured = own_query ? row.position : row.position - 1;
  const bool begins_answer = measured < sequence.prompt_tokens + options_.mass_interval;
  if (!options_.measure_captured_mass || (measured % options_.mass_interval != 0 && !begins_answer)) return question;
  if (own_query) {
    if (sequence.kv.rows(layer_) <= row.position) return question;
    question.measured = question.target;
    question.measured_position = row.position;
  } else if (layer.selected_position + 1 == row.position && layer.queries.Holds(row.position - 1)) {
    question.measured = layer.queries.rotated(row.position - 1) + offset;
    question.measured_position = row.position - 1;
  }
  return question;
}

void Selector::RunHead(int item, int worker, bool score) {
  Row& row = rows_[item / num_kv_heads_];
  const int head_index = item % num_kv_heads_;
  HeadSelection& head = row.layer->heads[head_index];
  // What goes into this position's entry is the mass of the one before.
  float previous_mass = head.mass_position + 1 == row.position ? head.mass : std::nanf("");
  if (score) {
    const HeadQuestion question = Question(row, head_index);
    head.scored_key_bytes += ScoredKeyBytes(model_, question);
    const float mass = SelectHead(*kernels_, model_, question, scratch_[worker], &head.selected);
    if (question.measured != nullptr) {
      head.mass = mass;
      head.mass_position = question.measured_position;
      if (question.measured_position + 1 == row.position) previous_mass = mass;
    }
  }
  if (!row.sends) return;
  HeadDelta& delta = *row.deltas[head_index];
  const uint32_t ring = wire::RingTokens(row.sequence->spec.recent_tokens, kBlockTokens, kSlotPageTokens);
  head.residency.Update(*kernels_, head.selected, row.position, ring, scratch_[worker].top_k, &delta);
  delta.captured_mass = previous_mass;
}

void Selector::RunBatch(PeerLink& link, bool score) {
  if (num_rows_ == 0) return;
  const uint64_t plan = rows_[0].sequence->seat.position == rows_[0].position ? rows_[0].sequence->seat.plan : 0;
  const TimelineSpan span(metrics_->timeline, score ? Span::kSelect : Span::kSend, static_cast<uint16_t>(layer_), plan,
                          static_cast<uint32_t>(num_rows_));
  struct Context {
    Selector* selector;
    bool score;
  } context{this, score};
  const auto start = std::chrono::steady_clock::now();
  kernels_->parallel_for(
      *executor_, static_cast<int>(num_rows_) * num_kv_heads_,
      [](void* opaque, int item, int worker) {
        const auto* context = static_cast<Context*>(opaque);
        context->selector->RunHead(item, worker, context->score);
      },
      &context);
  if (score) {
    metrics_->selections.Add(num_rows_);
    metrics_->selection_seconds.Add(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (size_t i = 0; i < num_rows_; ++i) {
    Row& row = rows_[i];
    if (score) row.layer->selected_position = row.position;
    if (!row.sends) continue;
    row.layer->sent_position = row.position;
    for (int head = 0; head < num_kv_heads_; ++head) {
      const float mass = row.deltas[head]->captured_mass;
      if (!std::isnan(mass)) metrics_->ObserveCapturedMass(layer_, mass);
      streamer_->SendDelta(link, *row.sequence, layer_, head, std::move(row.deltas[head]));
    }
  }
  streamer_->Pump(link);
}

}  // namespace winnow
