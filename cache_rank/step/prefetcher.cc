#include "cache_rank/step/prefetcher.h"

#include <algorithm>

#include "cache_rank/select/host/select_union.h"

namespace winnow {
namespace {

// More tasks than this are never done before they are stale.
constexpr size_t kMaxTasks = 4096;

}  // namespace

Prefetcher::Prefetcher(const SelectionModel& model, const KernelTable* kernels, Executor* executor,
                       const SequenceStore* store, Streamer* streamer, CacheRankMetrics* metrics)
    : model_(model),
      kernels_(kernels),
      executor_(executor),
      store_(store),
      streamer_(streamer),
      metrics_(metrics),
      scratch_(kernels->num_workers(*executor)) {}

void Prefetcher::OnQuery(InferenceLink& link, const CachedSequence& sequence, int layer, uint32_t position) {
  if (position + 1 >= sequence.kv.max_positions() || link.to_prefetch.size() >= kMaxTasks) return;
  link.to_prefetch.push_back({sequence.id, sequence.attach_epoch, position, static_cast<uint16_t>(layer)});
}

bool Prefetcher::RunOnce(InferenceLinks& links) {
  for (const auto& [id, link] : links) {
    if (!link->to_send.empty() || !link->to_score.empty()) return false;
  }
  for (const auto& [id, link] : links) {
    if (link->queued() > 0 || !link->failure.ok() || !Take(*link)) continue;
    const TimelineSpan span(metrics_->timeline, Span::kPrefetch, static_cast<uint16_t>(layer_), sequence_->planned.plan,
                            1);
    heads_.resize(sequence_->layers[layer_].heads.size());
    kernels_->parallel_for(
        *executor_, static_cast<int>(heads_.size()),
        [](void* self, int head, int worker) { static_cast<Prefetcher*>(self)->RunHead(head, worker); }, this);
    metrics_->prefetches.Add(1);
    Send(*link);
    return true;
  }
  return false;
}

bool Prefetcher::Take(InferenceLink& link) {
  while (!link.to_prefetch.empty()) {
    const SelectionTask task = link.to_prefetch.front();
    link.to_prefetch.pop_front();
    sequence_ = store_->FindAttached(task.sequence_id, task.attach_epoch, link.id);
    if (sequence_ == nullptr) continue;
    layer_ = task.layer;
    position_ = task.position;
    const LayerSelection& layer = sequence_->layers[layer_];
    // The delta of `position` has been posted and that of the next one has not been computed: see the class comment.
    if (layer.sent_position != position_ || !layer.queries.Holds(position_)) continue;
    if (PredictsFromPast(sequence_->spec.predictor) && layer.selected_position != position_ + 1) continue;
    return true;
  }
  return false;
}

void Prefetcher::RunHead(int head_index, int worker) {
  const LayerSelection& layer = sequence_->layers[layer_];
  const HeadSelection& selection = layer.heads[head_index];
  Head& head = heads_[head_index];
  Scratch& scratch = scratch_[worker];
  head.delta.streamed.clear();
  head.delta.streamed_positions.clear();
  const size_t list = sequence_->list(layer_, head_index);
  if (!NeedsSelection(sequence_->spec, list, position_ + 1, sequence_->prompt_tokens)) return;
  if (PredictsFromPast(sequence_->spec.predictor)) {
    head.wanted = selection.selected;  // made for the next position already
  } else {
    const HeadQuestion question{.spec = &sequence_->prefetch_spec,
                                .position = position_ + 1,
                                .budget_tokens = selection.growth.BudgetAt(position_ + 1),
                                .index = sequence_->kv.index(layer_, head_index),
                                .first_query_head = head_index * model_.group_size,
                                .ring = &layer.queries,
                                .prompt_tokens = sequence_->prompt_tokens};
    (void)SelectUnion(*kernels_, model_, question, scratch.select, &head.wanted, &head.wanted_members);
  }
  const uint32_t ring = wire::RingTokens(sequence_->spec.recent_tokens, kBlockTokens, kSlotPageTokens);
  selection.residency.PlanPrefetch(*kernels_, head.wanted, position_, ring, scratch.prefetch, &head.delta);
}

void Prefetcher::Send(InferenceLink& link) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    const HeadDelta& delta = heads_[i].delta;
    HeadResidency& residency = sequence_->layers[layer_].heads[i].residency;
    for (uint32_t first = 0; first < delta.streamed.size();) {
      const uint32_t posted = streamer_->PostPrefetch(link, *sequence_, layer_, static_cast<int>(i), delta, first);
      if (posted == 0) return;
      for (const uint32_t end = first + posted; first < end; ++first) {
        residency.CommitPrefetch(delta.streamed[first], delta.streamed_positions[first], position_);
      }
    }
  }
}

}  // namespace winnow
