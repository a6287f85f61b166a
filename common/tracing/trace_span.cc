#include "common/tracing/trace_span.h"

namespace winnow {

void TraceSpan::Set(const char* key, SpanValue value) {
  attributes.emplace_back(key, std::move(value));
}

void TraceSpan::Set(const char* key, uint64_t value) {
  attributes.emplace_back(key, static_cast<int64_t>(value));
}

void TraceSpan::Set(const char* key, uint32_t value) {
  attributes.emplace_back(key, int64_t{value});
}

void TraceSpan::Set(const char* key, const char* value) {
  attributes.emplace_back(key, std::string(value));
}

void TraceSpan::AddEvent(const char* event_name) {
  events.push_back({.name = event_name, .unix_nanos = UnixNanosNow()});
}

uint64_t UnixNanosNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

TraceSpan ChildSpan(const TraceContext& parent, std::string name, SpanKind kind, uint64_t start_unix_nanos) {
  return {.context = parent.Child(),
          .parent_span_id = parent.span_id,
          .name = std::move(name),
          .kind = kind,
          .start_unix_nanos = start_unix_nanos,
          .end_unix_nanos = start_unix_nanos};
}

}  // namespace winnow
