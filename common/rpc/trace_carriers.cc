#include "common/rpc/trace_carriers.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include "winnow/v1/trace.pb.h"

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

void SetTrace(google::protobuf::Message& submit, const TraceContext& trace) {
  v1::SubmitTrace fields;
  fields.set_traceparent(Traceparent(trace));
  fields.set_tracestate(trace.tracestate);
  submit.MergeFromString(fields.SerializeAsString());
}

std::optional<TraceContext> TraceOf(const google::protobuf::Message& submit) {
  const google::protobuf::UnknownFieldSet& unknown = submit.GetReflection()->GetUnknownFields(submit);
  if (unknown.empty()) return std::nullopt;
  std::string bytes;
  v1::SubmitTrace fields;
  if (!unknown.SerializeToString(&bytes) || !fields.ParseFromString(bytes)) return std::nullopt;
  return ParseTraceContext(fields.traceparent(), fields.tracestate());
}

}  // namespace winnow
