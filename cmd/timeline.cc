#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "cmd/client/client_security.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "tools/timeline/chrome_trace.h"
#include "tools/timeline/timeline_client.h"
#include "tools/timeline/timeline_summary.h"

namespace winnow {
namespace {

struct TimelineOptions {
  HostPort router{"127.0.0.1", 8001};
  ClientSecurity security;
  double seconds = 1;
  std::string out = "winnow-timeline.json";

  void Declare(Fields& fields) {
    fields.Address("router", &router, "gRPC address of the router; it knows the ranks.");
    security.Declare(fields);
    fields.Number("seconds", &seconds, "How long to record.", 0.001, 60);
    fields.File("out", &out, "Where the trace goes (chrome://tracing, ui.perfetto.dev).");
  }
};

absl::Status Run(const TimelineOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const Credentials credentials, options.security.Load());
  WINNOW_ASSIGN_OR_RETURN(TimelineClient client, TimelineClient::Connect(options.router.ToString(), credentials));
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

}  // namespace

int TimelineMain(const Arguments& arguments) {
  TimelineOptions options;
  if (const auto code = ParseCommandLine("timeline", "[--option=value ...]", arguments, options)) return *code;
  const absl::Status status = Run(options);
  return status.ok() ? 0 : Fail("timeline", status);
}

}  // namespace winnow
