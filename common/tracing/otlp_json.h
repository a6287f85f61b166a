#pragma once
#include <span>
#include <string>

#include "common/tracing/trace_span.h"

namespace winnow {

// The body of an OTLP/HTTP request in JSON (an ExportTraceServiceRequest): ids are hexadecimal, 64-bit integers are
// strings, and enumerations are numbers, as the OpenTelemetry protocol maps its messages. `resource` says which process
// the spans are of.
std::string OtlpJson(const SpanAttributes& resource, std::span<const TraceSpan> spans);

}  // namespace winnow
