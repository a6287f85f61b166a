#include "inference_rank/prefill_step.h"

#include <algorithm>

namespace winnow {

void PrefillStep::Begin(Sequence& sequence, uint32_t first, uint32_t count) {
  sequence_ = &sequence;
  first_ = first;
  count_ = count;
}

PrefillKv::Rows PrefillStep::Destination(int layer, int first_kv_head) {
  return sequence_->arena->on_device() ? RowsOf(layer, first_kv_head) : Rows();
}

int PrefillStep::QueriesWanted(int num_tokens) const {
  const uint32_t of_prompt = std::min(PromptQueries(sequence_->spec), sequence_->prompt_tokens());
  const uint32_t from = std::max(sequence_->prompt_tokens() - of_prompt, first_);
  const uint32_t end = first_ + static_cast<uint32_t>(num_tokens);
  return from < end ? static_cast<int>(end - from) : 0;
}

PrefillKv::Rows PrefillStep::Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) {
  PrefillArena& arena = *sequence_->arena;
  if (!arena.on_device()) arena.Store(layer, first_, count_, kv_rows);
  if (sequence_->failure.ok()) {
    const HostRows rows =
        arena.on_device() ? RowsByToken(layout_, kv_rows) : RowsOfArena(layout_, arena, layer, first_);
    // Queries first: once the rows are acknowledged another rank may attach, for which the queries must be there.
    absl::Status posted = sender_.SendQueries(*sequence_, layer, first_, count_, q_pre_rope);
    if (posted.ok()) posted = sender_.SendRows(*sequence_, rows, layer, first_, count_);
    if (!posted.ok()) sequence_->Fail(posted, /*can_retry=*/true);
  }
  return RowsOf(layer, 0);
}

PrefillKv::Rows PrefillStep::RowsOf(int layer, int first_kv_head) const {
  const PrefillArena& arena = *sequence_->arena;
  return {.kv = arena.row(layer, first_kv_head, 0), .head_stride = arena.prompt_tokens()};
}

}  // namespace winnow
