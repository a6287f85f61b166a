#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace winnow {

// Where a span belongs: its trace, and itself, as the W3C's recommendation "Trace Context" carries it between
// processes.
struct TraceContext {
  uint64_t trace_id_high = 0;
  uint64_t trace_id_low = 0;  // the whole id is never 0
  uint64_t span_id = 0;       // never 0
  bool sampled = false;
  std::string tracestate = {};  // of other tracing systems; passed on as it came

  // A span of this trace with another id.
  TraceContext Child() const;
};

// The context of a trace that begins here.
TraceContext NewTrace(bool sampled);

// Of the header `traceparent`. Versions beyond 00 may bring more fields, which are ignored. Absent where it is
// malformed or has an id of zeros: the recommendation then lets a receiver begin a trace of its own.
std::optional<TraceContext> ParseTraceparent(std::string_view text);
// Of both headers; a tracestate that is malformed, or has more than 32 members, is dropped alone.
std::optional<TraceContext> ParseTraceContext(std::string_view traceparent, std::string_view tracestate);
// Whether a tracestate follows the recommendation's grammar.
bool IsTracestate(std::string_view text);

// "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".
std::string Traceparent(const TraceContext& context);
// 32 and 16 lower-case digits.
std::string TraceIdText(const TraceContext& context);
std::string SpanIdText(uint64_t span_id);

// Whether a trace that begins here is among the share `ratio` (0 to 1) of traces; a function of its id alone, so that
// processes that are asked apart agree.
bool IsInSample(const TraceContext& context, double ratio);

}  // namespace winnow
