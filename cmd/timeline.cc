#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/server_options.h"
#include "tools/timeline/chrome_trace.h"
#include "tools/timeline/timeline_client.h"
#include "tools/timeline/timeline_summary.h"

namespace winnow {
namespace {

struct TimelineOptions {
  HostPort server{"127.0.0.1", kGrpcPort};
  ClientSecurity security;
  double seconds = 1;
  std::string out = "winnow-timeline.json";

  void Declare(Fields& fields) {
    DeclareServer(fields, &server, "the gRPC address of the router, which knows the ranks; without a port, 8001.");
    security.Declare(fields);
    fields.Number("seconds", &seconds, "How long to record.", 0.001, 60);
    fields.File("out", &out, "Where the trace goes (chrome://tracing, ui.perfetto.dev).");
  }
};

absl::Status Run(const TimelineOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const Credentials credentials, options.security.Load());
  WINNOW_ASSIGN_OR_RETURN(TimelineClient client, TimelineClient::Connect(options.server.ToString(), credentials));
  std::ofstream file(options.out, std::ios::binary);
  if (!file) return absl::PermissionDeniedError("cannot write " + options.out);
  WINNOW_RETURN_IF_ERROR(client.Start());
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<v1::StopTimelineResponse> timelines, client.Stop());
  file << ChromeTrace(timelines);
  file.close();
  if (!file) return absl::DataLossError("writing " + options.out + " failed");
  const std::string summary = SummarizeTimelines(timelines);
  std::printf("%strace of %zu ranks in %s\n",
              summary.empty() ? "neither decode steps nor prompts ran meanwhile\n" : summary.c_str(), timelines.size(),
              options.out.c_str());
  return absl::OkStatus();
}

int TimelineMain(const Arguments& arguments) {
  TimelineOptions options;
  if (const auto code = ParseCommandLine(kTimelineCommand, arguments, options)) return *code;
  const absl::Status status = Run(options);
  return status.ok() ? 0 : Fail(kTimelineCommand, WithServerHint(status));
}

}  // namespace

const Command kTimelineCommand = {
    .name = "timeline",
    .summary = "record what the ranks of a running cluster do, by layer, as a Chrome trace",
    .synopsis = "[--option=value ...]",
    .environment = Environment::kRead,
    .options = Declared<TimelineOptions>,
    .run = TimelineMain};

}  // namespace winnow
