#include "inference_rank/prefill_step.h"

namespace winnow {

void PrefillStep::Begin(Sequence& sequence, uint32_t count) {
  sequence_ = &sequence;
  first_ = sequence.next_position;
  count_ = count;
}

PrefillKv::Rows PrefillStep::Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) {
  PrefillArena& arena = *sequence_->arena;
  arena.Store(layer, first_, count_, kv_rows);
  if (sequence_->failure.ok()) {
    absl::Status posted = sender_.SendRows(*sequence_, arena, layer, first_, count_);
    if (posted.ok()) posted = sender_.SendQueries(*sequence_, layer, first_, count_, q_pre_rope);
    if (!posted.ok()) sequence_->Fail(posted, /*can_retry=*/true);
  }
  return {.kv = arena.row(layer, 0, 0), .head_stride = arena.prompt_tokens()};
}

void PrefillStep::Finish() {
  sequence_->next_position += count_;
  sequence_ = nullptr;
}

void PrefillStep::HandOver(const KvLayout& layout, Sequence& sequence) {
  LoadPrompt(layout, *sequence.arena, sequence);
  sequence.arena.reset();
}

}  // namespace winnow
