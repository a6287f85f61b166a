#pragma once
#include <string_view>

#include "common/tracing/trace_span.h"

namespace winnow {

// Attributes of a process for its spans: `own`, and what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say
// ("key=value,key=value", values in percent-encoding), each empty where it is not set. These may rename the service and
// its namespace; what tells processes apart, and what they are, stays. A list that is malformed counts for nothing, as
// OpenTelemetry has it.
SpanAttributes WithEnvironment(SpanAttributes own, std::string_view service_name, std::string_view attributes);

}  // namespace winnow
