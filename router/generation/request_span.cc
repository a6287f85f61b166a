#include "router/generation/request_span.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace winnow {

std::optional<TraceContext> RequestTracing::Begin(const std::optional<TraceContext>& parent) const {
  if (parent) return parent->Child();
  if (sink == nullptr) return std::nullopt;
  TraceContext trace = NewTrace(/*sampled=*/true);
  return IsInSample(trace, sample) ? std::optional(std::move(trace)) : std::nullopt;
}

RequestSpan::RequestSpan(const RequestTracing& tracing, const TraceContext& context, uint64_t parent_span_id,
                         Description description, const TokenRequest& request)
    : sink_(context.sampled ? tracing.sink : nullptr), description_(std::move(description)) {
  span_.context = context;
  if (sink_ == nullptr) return;
  span_.parent_span_id = parent_span_id;
  span_.name = absl::StrCat(description_.operation, " ", tracing.model_id);
  span_.kind = SpanKind::kServer;
  span_.start_unix_nanos = UnixNanosNow();
  span_.Set("gen_ai.operation.name", SpanValue(description_.operation));
  span_.Set("gen_ai.provider.name", "winnow");
  span_.Set("gen_ai.request.model", SpanValue(tracing.model_id));
  span_.Set("gen_ai.response.model", SpanValue(tracing.model_id));
  span_.Set("gen_ai.response.id", SpanValue(description_.request_id));
  span_.Set("gen_ai.request.max_tokens", request.stopping.max_tokens());
  if (description_.outputs > 1) span_.Set("gen_ai.request.choice.count", description_.outputs);
  if (request.sampling.has_temperature()) {
    span_.Set("gen_ai.request.temperature", SpanValue(double{request.sampling.temperature()}));
  }
  if (request.sampling.has_top_p()) span_.Set("gen_ai.request.top_p", SpanValue(double{request.sampling.top_p()}));
  if (!description_.tenant.empty()) span_.Set("winnow.tenant", SpanValue(description_.tenant));
  if (request.priority != 0) span_.Set("winnow.priority", SpanValue(int64_t{request.priority}));
}

std::shared_ptr<OutputSpans> RequestSpan::AddOutput() {
  const auto index = static_cast<uint32_t>(outputs_.size());
  outputs_.push_back(std::make_shared<OutputSpans>(sink_, span_.context,
                                                   description_.outputs > 1 ? std::optional(index) : std::nullopt));
  return outputs_.back();
}

void RequestSpan::End(const RequestRecord& record) {
  if (sink_ == nullptr) return;
  span_.end_unix_nanos = UnixNanosNow();
  for (const auto& output : outputs_) {
    for (SpanEvent& event : output->TakeEvents()) span_.events.push_back(std::move(event));
  }
  span_.Set("gen_ai.usage.input_tokens", record.prompt_tokens);
  span_.Set("gen_ai.usage.output_tokens", record.completion_tokens);
  span_.Set("gen_ai.usage.cache_read.input_tokens", record.cached_prompt_tokens);
  if (!finish_reasons_.empty()) span_.Set("gen_ai.response.finish_reasons", SpanValue(finish_reasons_));
  if (record.first_token) span_.Set("winnow.time_to_first_token_s", SpanValue(record.first_token->count()));
  span_.Set("winnow.outcome", SpanValue(record.ended));
  if (!record.ranks.empty()) span_.Set("winnow.ranks", SpanValue(record.ranks));
  if (record.ended != "stop" && record.ended != "length" && record.ended != "abort") {
    span_.Set("error.type", SpanValue(record.ended));
    span_.error = record.ended;
  }
  sink_->Add(span_);
}

}  // namespace winnow
