#pragma once
#include <optional>

#include "common/tracing/trace_context.h"
#include "winnow/v1/rank.pb.h"

namespace grpc {
class ClientContext;
class ServerContextBase;
}  // namespace grpc

namespace winnow {

// How trace contexts travel between processes: as gRPC metadata `traceparent` and `tracestate`, the names of the
// headers that the W3C recommends, and, where one stream carries many requests, in fields of their messages.

// Before the call.
void SetTrace(grpc::ClientContext& context, const TraceContext& trace);
// Of a call's metadata; absent where there is none, or it is malformed.
std::optional<TraceContext> TraceOf(const grpc::ServerContextBase& context);

void SetTrace(v1::DispatchRequest::Submit& submit, const TraceContext& trace);
std::optional<TraceContext> TraceOf(const v1::DispatchRequest::Submit& submit);

}  // namespace winnow
