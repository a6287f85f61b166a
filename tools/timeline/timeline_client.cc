#include "tools/timeline/timeline_client.h"

#include <algorithm>
#include <chrono>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow {
namespace {

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

}  // namespace

absl::StatusOr<TimelineClient> TimelineClient::Connect(const std::string& router, const Credentials& credentials) {
  const auto stub = v1::MembershipService::NewStub(NewChannel(router, credentials));
  grpc::ClientContext context;
  SetDeadline(context);
  const auto watch = stub->Watch(&context, v1::WatchRequest());
  v1::WatchResponse table;
  const bool answered = watch->Read(&table);
  context.TryCancel();
  const grpc::Status ended = watch->Finish();
  if (!answered) return Annotate(FromGrpc(ended), "router at " + router);
  TimelineClient client;
  std::vector<std::string> addresses;
  for (const v1::Member& member : table.members()) {
    const std::string& address = member.identity().address();
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) continue;
    addresses.push_back(address);
    client.ranks_.push_back({member.identity().rank(), v1::AdminService::NewStub(NewChannel(address, credentials))});
  }
  if (client.ranks_.empty()) return absl::NotFoundError("no rank has joined the router at " + router);
  return client;
}

absl::Status TimelineClient::Start() {
  for (const Rank& rank : ranks_) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::StartTimelineResponse started;
    WINNOW_RETURN_IF_ERROR(
        Annotate(FromGrpc(rank.stub->StartTimeline(&context, v1::StartTimelineRequest(), &started)), rank.name));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::StopTimelineResponse>> TimelineClient::Stop() {
  std::vector<v1::StopTimelineResponse> timelines(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status stopped = ranks_[i].stub->StopTimeline(&context, v1::StopTimelineRequest(), &timelines[i]);
    WINNOW_RETURN_IF_ERROR(Annotate(FromGrpc(stopped), ranks_[i].name));
  }
  return timelines;
}

}  // namespace winnow
