#include "common/rpc/trace_carriers.h"

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

namespace winnow {
namespace {

constexpr char kTraceparent[] = "traceparent";
constexpr char kTracestate[] = "tracestate";

}  // namespace

void SetTrace(grpc::ClientContext& context, const TraceContext& trace) {
  context.AddMetadata(kTraceparent, Traceparent(trace));
  if (!trace.tracestate.empty()) context.AddMetadata(kTracestate, trace.tracestate);
}

std::optional<TraceContext> TraceOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  // More than one is as good as none.
  if (metadata.count(kTraceparent) != 1) return std::nullopt;
  const grpc::string_ref parent = metadata.find(kTraceparent)->second;
  std::string state;
  for (auto [entry, end] = metadata.equal_range(kTracestate); entry != end; ++entry) {
    if (!state.empty()) state += ',';
    state.append(entry->second.data(), entry->second.size());
  }
  return ParseTraceContext({parent.data(), parent.size()}, state);
}

void SetTrace(v1::DispatchRequest::Submit& submit, const TraceContext& trace) {
  submit.set_traceparent(Traceparent(trace));
  submit.set_tracestate(trace.tracestate);
}

std::optional<TraceContext> TraceOf(const v1::DispatchRequest::Submit& submit) {
  return ParseTraceContext(submit.traceparent(), submit.tracestate());
}

}  // namespace winnow
