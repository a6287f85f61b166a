#include "inference_rank/step/prefill_step.h"

#include <algorithm>
#include <utility>

namespace winnow {

void PrefillStep::Begin(Sequence& sequence, uint32_t first, uint32_t count) {
  sequence_ = &sequence;
  first_ = first;
  count_ = count;
}

PrefillKv::Rows PrefillStep::Destination(int layer, int first_kv_head) {
  return sequence_->arena->on_device() ? RowsOf(layer, first_kv_head) : Rows();
}

void* PrefillStep::PushTo(int layer) {
  uint64_t& push = pushes_[layer % pushes_.size()];
  push = 0;
  if (!sequence_->arena->on_device() || !sequence_->failure.ok()) return nullptr;
  const absl::StatusOr<PromptSender::StagingPlace> staging = sender_.AwaitStagingPlace(*sequence_, layer, count_);
  if (!staging.ok()) {
    sequence_->Fail(staging.status(), /*can_retry=*/true);
    return nullptr;
  }
  push = staging->push;
  return staging->place;
}

int PrefillStep::QueriesWanted(int num_tokens) const {
  const uint32_t of_prompt = std::min(PromptQueries(sequence_->spec), sequence_->prompt_tokens());
  const uint32_t from = std::max(sequence_->prompt_tokens() - of_prompt, first_);
  const uint32_t end = first_ + static_cast<uint32_t>(num_tokens);
  return from < end ? static_cast<int>(end - from) : 0;
}

void PrefillStep::KeepQueries(int layer, const float* q_pre_rope) {
  const auto wanted = static_cast<uint32_t>(QueriesWanted(static_cast<int>(count_)));
  if (wanted == 0 || !sequence_->selects_in_place() || sequence_->hand_over) return;
  const uint32_t prompt = sequence_->prompt_tokens(), kept = std::min(PromptQueries(sequence_->spec), prompt);
  const size_t floats = static_cast<size_t>(layout_.num_query_heads) * layout_.head_dim;
  sequence_->past_queries.resize(layout_.num_layers * kept * floats);
  const size_t place = static_cast<size_t>(layer) * kept + first_ + count_ - wanted - (prompt - kept);
  std::copy_n(q_pre_rope + (count_ - wanted) * floats, wanted * floats,
              sequence_->past_queries.data() + place * floats);
}

PrefillKv::Rows PrefillStep::Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) {
  const TimelineSpan span(metrics_.timeline, Span::kPublish, static_cast<uint16_t>(layer), 0, 1);
  PrefillArena& arena = *sequence_->arena;
  if (!arena.on_device()) arena.Store(layer, first_, count_, kv_rows);
  const uint64_t push = std::exchange(pushes_[layer % pushes_.size()], 0);
  KeepQueries(layer, q_pre_rope);
  absl::Status posted;
  // Queries first: once the rows are acknowledged another rank may attach, for which the queries must be there.
  if (sequence_->failure.ok()) posted = sender_.SendQueries(*sequence_, layer, first_, count_, q_pre_rope);
  if (push != 0) {
    posted.Update(sender_.SendStaged(*sequence_, push, layer, first_, count_));  // of a failed sequence, too
  } else if (sequence_->failure.ok() && posted.ok()) {
    const HostRows rows =
        arena.on_device() ? RowsByHead(layout_, kv_rows, count_) : RowsOfArena(layout_, arena, layer, first_);
    posted = sender_.SendRows(*sequence_, rows, layer, first_, count_);
  }
  if (!posted.ok()) sequence_->Fail(posted, /*can_retry=*/true);
  return RowsOf(layer, 0);
}

PrefillKv::Rows PrefillStep::RowsOf(int layer, int first_kv_head) const {
  const PrefillArena& arena = *sequence_->arena;
  return {.kv = arena.row(layer, first_kv_head, 0), .head_stride = arena.prompt_tokens()};
}

}  // namespace winnow
