#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "cmd/chrome_trace.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/timeline_summary.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "winnow/v1/admin.grpc.pb.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow {
namespace {

constexpr auto kCallTimeout = std::chrono::seconds(10);

struct TimelineOptions {
  HostPort router{"127.0.0.1", 8001};
  double seconds = 1;
  std::string out = "winnow-timeline.json";

  void Declare(Fields& fields) {
    fields.Address("router", &router, "gRPC address of the router; it knows the ranks.");
    fields.Number("seconds", &seconds, "How long to record.", 0.001, 60);
    fields.Text("out", &out, "Where the trace goes (chrome://tracing, ui.perfetto.dev).");
  }
};

struct RecordedRank {
  std::string name;
  std::unique_ptr<v1::AdminService::Stub> stub;
};

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
}

// The processes of the cluster that have a data path: hosted cache ranks share the process of their inference rank.
absl::StatusOr<std::vector<RecordedRank>> FindRanks(const std::string& router) {
  const auto stub = v1::MembershipService::NewStub(NewChannel(router));
  grpc::ClientContext context;
  SetDeadline(context);
  const auto watch = stub->Watch(&context, v1::WatchRequest());
  v1::WatchResponse table;
  const bool answered = watch->Read(&table);
  context.TryCancel();
  const grpc::Status ended = watch->Finish();
  if (!answered) return Annotate(FromGrpc(ended), "router at " + router);
  std::vector<RecordedRank> ranks;
  std::vector<std::string> addresses;
  for (const v1::Member& member : table.members()) {
    const std::string& address = member.identity().address();
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) continue;
    addresses.push_back(address);
    ranks.push_back({member.identity().rank(), v1::AdminService::NewStub(NewChannel(address))});
  }
  if (ranks.empty()) return absl::NotFoundError("no rank has joined the router at " + router);
  return ranks;
}

absl::StatusOr<std::vector<v1::StopTimelineResponse>> Record(const std::vector<RecordedRank>& ranks, double seconds) {
  for (const RecordedRank& rank : ranks) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::StartTimelineResponse started;
    WINNOW_RETURN_IF_ERROR(
        Annotate(FromGrpc(rank.stub->StartTimeline(&context, v1::StartTimelineRequest(), &started)), rank.name));
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  std::vector<v1::StopTimelineResponse> timelines(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    grpc::ClientContext context;
    SetDeadline(context);
    WINNOW_RETURN_IF_ERROR(Annotate(
        FromGrpc(ranks[i].stub->StopTimeline(&context, v1::StopTimelineRequest(), &timelines[i])), ranks[i].name));
  }
  return timelines;
}

absl::Status Run(const TimelineOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<RecordedRank> ranks, FindRanks(options.router.ToString()));
  std::ofstream file(options.out, std::ios::binary);
  if (!file) return absl::PermissionDeniedError("cannot write " + options.out);
  WINNOW_ASSIGN_OR_RETURN(const std::vector<v1::StopTimelineResponse> timelines, Record(ranks, options.seconds));
  file << ChromeTrace(timelines);
  file.close();
  if (!file) return absl::DataLossError("writing " + options.out + " failed");
  const std::string summary = SummarizeTimelines(timelines);
  std::printf("%strace of %zu ranks in %s\n", summary.empty() ? "no decode step ran meanwhile\n" : summary.c_str(),
              timelines.size(), options.out.c_str());
  return absl::OkStatus();
}

}  // namespace

int TimelineMain(const Arguments& arguments) {
  TimelineOptions options;
  if (const auto code = ParseCommandLine("timeline", "[--option=value ...]", arguments, options)) return *code;
  const absl::Status status = Run(options);
  return status.ok() ? 0 : Fail("timeline", status);
}

}  // namespace winnow
