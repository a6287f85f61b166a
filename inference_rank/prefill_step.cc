#include "inference_rank/prefill_step.h"

#include <cstring>

namespace winnow {
void PrefillStep::Begin(Sequence& sequence, uint32_t count) {
  sequence_ = &sequence;
  first_ = sequence.next_position;
  count_ = count;
}

PrefillKv::Rows PrefillStep::Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) {
  PrefillArena& arena = *sequence_->arena;
  const size_t row_bytes = layout_.row_bytes();
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    std::byte* out = arena.row(layer, head, first_);
    for (uint32_t i = 0; i < count_; ++i) {
      std::memcpy(out + i * row_bytes, kv_rows + (static_cast<size_t>(i) * layout_.num_kv_heads + head) * row_bytes,
                  row_bytes);
    }
  }
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
