#include "inference_rank/prefill_step.h"

#include <algorithm>
#include <cstring>

namespace winnow {
namespace {

// Queries of the prompt's end that the predictor's first positions need.
uint32_t PromptQueries(const SelectionSpec& spec) {
  if (IsDense(spec)) return 0;
  if (spec.predictor == Predictor::kTemporal || spec.prefetch == Prefetch::kTemporal) return spec.window + 1;
  return spec.predictor == Predictor::kLast ? 1 : 0;
}

}  // namespace

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
    absl::Status posted = PostRows(layer);
    if (posted.ok()) posted = PostQueries(layer, q_pre_rope);
    if (!posted.ok()) sequence_->Fail(posted, /*can_retry=*/true);
  }
  return {.kv = arena.row(layer, 0, 0), .head_stride = arena.prompt_tokens()};
}

absl::Status PrefillStep::PostRows(int layer) {
  const size_t row_bytes = layout_.row_bytes();
  const uint32_t most = static_cast<uint32_t>(wire::kMaxPayloadBytes / (layout_.num_kv_heads * row_bytes));
  for (uint32_t done = 0; done < count_;) {
    const uint32_t rows = std::min(most, count_ - done);
    const size_t head_bytes = rows * row_bytes;
    WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                            AwaitSendBuffer(transport_, *sequence_->link, layout_.num_kv_heads * head_bytes, waits_));
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      std::memcpy(buffer.payload().data() + head * head_bytes, sequence_->arena->row(layer, head, first_ + done),
                  head_bytes);
    }
    wire::FrameHeader header{};
    header.type = wire::FrameType::kAppendRange;
    header.sequence_id = sequence_->sequence_id;
    header.attach_epoch = sequence_->attach_epoch;
    header.apply_position = first_ + done;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = rows;
    WINNOW_RETURN_IF_ERROR(sequence_->link->channel()->Post(header, std::move(buffer)));
    done += rows;
  }
  transport_.Progress();
  return absl::OkStatus();
}

absl::Status PrefillStep::PostQueries(int layer, const float* q_pre_rope) {
  const uint32_t wanted = std::min(PromptQueries(sequence_->spec), sequence_->prompt_tokens());
  const uint32_t from = std::max(sequence_->prompt_tokens() - wanted, first_);
  const uint32_t end = first_ + count_;
  if (wanted == 0 || from >= end) return absl::OkStatus();
  const size_t query_floats = static_cast<size_t>(layout_.num_query_heads) * layout_.head_dim;
  const size_t bytes = (end - from) * query_floats * sizeof(float);
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(transport_, *sequence_->link, bytes, waits_));
  std::memcpy(buffer.payload().data(), q_pre_rope + (from - first_) * query_floats, bytes);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kPromptQueries;
  header.sequence_id = sequence_->sequence_id;
  header.attach_epoch = sequence_->attach_epoch;
  header.apply_position = from;
  header.layer_first = static_cast<uint16_t>(layer);
  header.row_count = end - from;
  return sequence_->link->channel()->Post(header, std::move(buffer));
}

void PrefillStep::Finish() {
  sequence_->next_position += count_;
  sequence_ = nullptr;
}

void PrefillStep::HandOver(const KvLayout& layout, Sequence& sequence) {
  const uint32_t prompt = sequence.prompt_tokens();
  WorkingSet& set = *sequence.working_set;
  const uint32_t sinks = std::min(sequence.spec.sink_tokens, prompt);
  const uint32_t ring = std::max(sinks, prompt > set.ring_tokens() ? prompt - set.ring_tokens() : 0);
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const bool dense = set.AttendsEverything(static_cast<size_t>(layer) * layout.num_kv_heads + head, prompt - 1);
      const uint32_t tail = dense ? sinks : ring;
      set.LoadRows(layer, head, 0, sinks, sequence.arena->row(layer, head, 0), prompt);
      set.LoadRows(layer, head, tail, prompt - tail, sequence.arena->row(layer, head, tail), prompt);
    }
  }
  set.FinishLoad(prompt);
  sequence.arena.reset();
}

}  // namespace winnow
