#include "inference_rank/sequence/sequence_spans.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "inference_rank/sequence/sequence.h"

namespace winnow {

SequenceSpans::SequenceSpans(SpanSink* sink, const TraceContext& attempt)
    : sink_(sink), span_(ChildSpan(attempt, "sequence", SpanKind::kServer, UnixNanosNow())) {
  BeginPhase("queue");
}

void SequenceSpans::Opening() {
  if (!phase_ || phase_->name != "open") BeginPhase("open");
}

void SequenceSpans::Opened(uint32_t cached_tokens, bool computes_prompt) {
  BeginPhase(computes_prompt ? "prefill" : "decode");
  if (computes_prompt) phase_->Set("winnow.cached_tokens", cached_tokens);
}

void SequenceSpans::PromptEnds() {
  BeginPhase("decode");
}

void SequenceSpans::Preempted() {
  span_.AddEvent("preempted");
  BeginPhase("queue");
}

void SequenceSpans::End(const Sequence& sequence, const v1::SelectionStats& stats, std::string_view outcome) {
  if (std::exchange(ended_, true)) return;
  const uint64_t now = UnixNanosNow();
  EndPhase(now);
  span_.end_unix_nanos = now;
  span_.Set("winnow.sequence_id", absl::StrCat(absl::Hex(sequence.sequence_id, absl::kZeroPad16)));
  span_.Set("winnow.attached", SpanValue(sequence.attach));
  span_.Set("winnow.outcome", SpanValue(std::string(outcome)));
  span_.Set("winnow.prompt_tokens", sequence.prompt_tokens());
  span_.Set("winnow.cached_tokens", sequence.cached_tokens);
  span_.Set("winnow.generated_tokens", uint64_t{sequence.generated.size()});
  span_.Set("winnow.decode_steps", stats.decode_steps());
  span_.Set("winnow.selection.lookups", uint64_t{stats.selection_lookups()});
  span_.Set("winnow.selection.hits", uint64_t{stats.selection_hits()});
  span_.Set("winnow.kv.resident_rows", stats.resident_rows());
  span_.Set("winnow.kv.streamed_rows", uint64_t{stats.streamed_rows()});
  span_.Set("winnow.kv.streamed_bytes", uint64_t{stats.streamed_bytes()});
  span_.Set("winnow.kv.prefetched_rows", uint64_t{stats.prefetched_rows()});
  if (stats.has_captured_mass_mean()) span_.Set("winnow.captured_mass", SpanValue(double{stats.captured_mass_mean()}));
  if (!sequence.failure.ok()) {
    span_.error = std::string(sequence.failure.message());
    span_.Set("error.type", SpanValue(absl::StatusCodeToString(sequence.failure.code())));
  }
  sink_->Add(std::move(span_));
}

void SequenceSpans::BeginPhase(const char* name) {
  if (ended_) return;
  const uint64_t now = UnixNanosNow();
  EndPhase(now);
  phase_ = ChildSpan(span_.context, name, SpanKind::kInternal, now);
}

void SequenceSpans::EndPhase(uint64_t unix_nanos) {
  if (!phase_) return;
  phase_->end_unix_nanos = unix_nanos;
  sink_->Add(*std::exchange(phase_, std::nullopt));
}

}  // namespace winnow
