#pragma once
#include <optional>

#include "common/tracing/trace_context.h"

namespace grpc {
class ClientContext;
class ServerContextBase;
}  // namespace grpc
namespace google::protobuf {
class Message;
}

namespace winnow {

// How trace contexts travel between processes: as gRPC metadata `traceparent` and `tracestate`, the names of the
// headers that the W3C recommends, and, where one stream carries many requests, in their messages (v1::SubmitTrace).

// Before the call.
void SetTrace(grpc::ClientContext& context, const TraceContext& trace);
// Of a call's metadata; absent where there is none, or it is malformed.
std::optional<TraceContext> TraceOf(const grpc::ServerContextBase& context);

// `submit` is a DispatchRequest.Submit.
void SetTrace(google::protobuf::Message& submit, const TraceContext& trace);
std::optional<TraceContext> TraceOf(const google::protobuf::Message& submit);

}  // namespace winnow
