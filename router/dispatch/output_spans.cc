#include "router/dispatch/output_spans.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace winnow {

OutputSpans::OutputSpans(SpanSink* sink, const TraceContext& request, std::optional<uint32_t> output_index)
    : sink_(sink), request_(request), output_index_(output_index) {
  BeginPhase("queue");
}

TraceContext OutputSpans::BeginAttempt(const std::string& rank, std::string_view how) {
  if (sink_ == nullptr) return request_.Child();
  std::lock_guard lock(mutex_);
  if (phase_ && phase_->name == "queue") BeginPhase("prefill");
  attempt_ = ChildSpan(request_, absl::StrCat("dispatch ", rank), SpanKind::kClient, UnixNanosNow());
  Label(&*attempt_);
  attempt_->Set("winnow.rank", SpanValue(rank));
  attempt_->Set("winnow.attempt", SpanValue(std::string(how)));
  return attempt_->context;
}

void OutputSpans::EndAttempt(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (!attempt_) return;
  attempt_->end_unix_nanos = UnixNanosNow();
  if (!status.ok()) {
    attempt_->error = std::string(status.message());
    attempt_->Set("error.type", SpanValue(absl::StatusCodeToString(status.code())));
  }
  sink_->Add(*std::exchange(attempt_, std::nullopt));
}

void OutputSpans::NoteFailover(const std::string& from_rank, std::string_view how, const absl::Status& why) {
  if (sink_ == nullptr) return;
  std::lock_guard lock(mutex_);
  events_.push_back({.name = "failover",
                     .unix_nanos = UnixNanosNow(),
                     .attributes = {{"winnow.rank", from_rank},
                                    {"winnow.failover", std::string(how)},
                                    {"error.type", absl::StatusCodeToString(why.code())}}});
}

void OutputSpans::NoteEvent(std::string_view name) {
  if (sink_ == nullptr) return;
  std::lock_guard lock(mutex_);
  events_.push_back({.name = std::string(name), .unix_nanos = UnixNanosNow()});
}

void OutputSpans::NoteFirstToken(uint32_t cached_prompt_tokens) {
  std::lock_guard lock(mutex_);
  if (!phase_ || phase_->name == "decode") return;
  phase_->Set("winnow.cached_tokens", cached_prompt_tokens);
  BeginPhase("decode");
}

void OutputSpans::End() {
  std::lock_guard lock(mutex_);
  EndPhase();
}

std::vector<SpanEvent> OutputSpans::TakeEvents() {
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

void OutputSpans::BeginPhase(const char* name) {
  if (sink_ == nullptr) return;
  EndPhase();
  phase_ = ChildSpan(request_, name, SpanKind::kInternal, UnixNanosNow());
  Label(&*phase_);
}

void OutputSpans::EndPhase() {
  if (!phase_) return;
  phase_->end_unix_nanos = UnixNanosNow();
  sink_->Add(*std::exchange(phase_, std::nullopt));
}

void OutputSpans::Label(TraceSpan* span) const {
  if (output_index_) span->Set("winnow.output", *output_index_);
}

}  // namespace winnow
