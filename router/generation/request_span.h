#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/tracing/trace_span.h"
#include "router/dispatch/output_spans.h"
#include "router/dispatch/token_stream.h"
#include "router/generation/request_record.h"

namespace winnow {

// What a router does about traces.
struct RequestTracing {
  SpanSink* sink = nullptr;  // null: no spans are made, and the traces of clients are passed on
  double sample = 1;         // share of the requests whose client names no trace
  std::string model_id = {};

  // The span of a request of whose client's span, if it has named one, `parent` tells: in its trace, or in one that
  // begins here. Absent where the client names none and the request is not sampled.
  std::optional<TraceContext> Begin(const std::optional<TraceContext>& parent) const;
};

// The span of a whole request, with the attributes that OpenTelemetry has for generative AI (`gen_ai.*`), and those of
// its outputs below it; nothing of texts and keys. A request that is not sampled has none, and its context travels all
// the same. Touched by one thread at a time, but for what never changes.
class RequestSpan {
 public:
  struct Description {
    std::string operation;   // "chat" or "text_completion"
    std::string request_id;  // the client's, or one that was made
    std::string tenant;      // by its name; empty: it has none
    uint32_t outputs = 1;
  };
  RequestSpan(const RequestTracing& tracing, const TraceContext& context, uint64_t parent_span_id,
              Description description, const TokenRequest& request);

  const TraceContext& context() const { return span_.context; }
  const Description& description() const { return description_; }

  // Of the next output.
  std::shared_ptr<OutputSpans> AddOutput();
  // "stop", "length" or "error", of an output that has ended.
  void AddFinishReason(std::string reason) { finish_reasons_.push_back(std::move(reason)); }
  // Once, when every output has ended.
  void End(const RequestRecord& record);

 private:
  SpanSink* const sink_;  // null: not sampled
  const Description description_;
  TraceSpan span_;
  std::vector<std::shared_ptr<OutputSpans>> outputs_;
  std::vector<std::string> finish_reasons_;
};

}  // namespace winnow
