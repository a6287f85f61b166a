#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/tracing/trace_context.h"

namespace winnow {

using SpanValue = std::variant<std::string, int64_t, double, bool, std::vector<std::string>>;
using SpanAttributes = std::vector<std::pair<std::string, SpanValue>>;

// As OpenTelemetry numbers them.
enum class SpanKind { kInternal = 1, kServer = 2, kClient = 3 };

struct SpanEvent {
  std::string name;
  uint64_t unix_nanos = 0;
  SpanAttributes attributes = {};
};

// A piece of work in a trace, as OpenTelemetry describes it. It is made when the work begins and given to a SpanSink
// when it has ended.
struct TraceSpan {
  TraceContext context;         // its own
  uint64_t parent_span_id = 0;  // 0: the trace begins with it
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  uint64_t start_unix_nanos = 0;
  uint64_t end_unix_nanos = 0;
  SpanAttributes attributes = {};
  std::vector<SpanEvent> events = {};
  std::optional<std::string> error = {};  // what went wrong

  void Set(const char* key, SpanValue value);
  void Set(const char* key, uint64_t value);
  void Set(const char* key, uint32_t value);
  void Set(const char* key, const char* value);
  void AddEvent(const char* event_name);  // now
};

uint64_t UnixNanosNow();

// A span below `parent`, in its trace, that begins at `start_unix_nanos`.
TraceSpan ChildSpan(const TraceContext& parent, std::string name, SpanKind kind, uint64_t start_unix_nanos);

// Takes spans that have ended. Any thread; it waits for nobody, so that spans may be dropped.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Add(TraceSpan span) = 0;
};

}  // namespace winnow
