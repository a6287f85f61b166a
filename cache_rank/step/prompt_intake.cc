#include "cache_rank/step/prompt_intake.h"

namespace winnow {

bool PromptIntake::Append(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                          const std::byte* rows) {
  const TimelineSpan span(metrics_->timeline, Span::kAppend, static_cast<uint16_t>(layer), 0, 1);
  const uint32_t watermark = sequence.kv.watermark();
  if (!sequence.kv.Append(layer, first, count, rows, executor_).ok()) {
    selector_->Refuse(link, 0, sequence, layer);
    return false;
  }
  metrics_->appended_rows.Add(uint64_t{count} * sequence.layout.num_kv_heads);
  const uint32_t end = sequence.kv.rows(layer);
  if (end == sequence.prompt_tokens && end > 0) selector_->OnQuery(link, sequence, layer, end - 1);
  if (sequence.kv.watermark() > watermark) {
    if (sequence.kv.watermark() == sequence.prompt_tokens) store_->KeepPrefix(sequence);
    streamer_->SendWatermark(link, 0, sequence);
    streamer_->Pump(link);
  }
  return true;
}

}  // namespace winnow
