#include <unistd.h>

#include <cstdio>
#include <thread>

#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/server_options.h"
#include "cmd/status/cluster_status.h"
#include "common/base/json.h"

namespace winnow {
namespace {

constexpr std::chrono::milliseconds kAnswerLimit{2000};

struct StatusOptions {
  HostPort server{"127.0.0.1", kMetricsPort};
  std::chrono::microseconds interval{1'000'000};
  bool json = false;

  void Declare(Fields& fields) {
    DeclareServer(fields, &server, "the metrics address of the router, which knows all others; without a port, 9100.");
    fields.Duration("interval", &interval,
                    "Time over which rates and quantiles are taken; of `winnow top`, from one "
                    "picture to the next.");
    fields.Bool("json", &json, "Print one JSON object (for `winnow top`: a line each) instead of a table.");
  }
};

void Print(const ClusterStatus& status, bool json, bool live) {
  // The picture is drawn over the last one, and what is left of that is erased.
  if (live && !json) std::printf("\033[H\033[J");
  std::printf("%s%s", json ? ToJson(status).dump().c_str() : ToText(status).c_str(), json ? "\n" : "");
  std::fflush(stdout);
}

absl::Status Show(const StatusOptions& options, bool live) {
  if (options.interval < std::chrono::milliseconds(50)) {
    return absl::InvalidArgumentError("--interval must be 50ms or more");
  }
  const std::string router = options.server.ToString();
  WINNOW_ASSIGN_OR_RETURN(ClusterScrape before, ScrapeCluster(router, kAnswerLimit));
  const bool terminal = live && !options.json && isatty(STDOUT_FILENO) != 0;
  do {
    std::this_thread::sleep_for(options.interval);
    absl::StatusOr<ClusterScrape> after = ScrapeCluster(router, kAnswerLimit);
    if (!after.ok()) {
      // A picture that runs waits for the router to come back.
      if (!terminal) return after.status();
      std::printf("\033[H\033[J%s\n", std::string(after.status().message()).c_str());
      std::fflush(stdout);
      continue;
    }
    Print(StatusBetween(before, *after), options.json, terminal);
    before = *std::move(after);
  } while (live);
  return absl::OkStatus();
}

int Main(const Command& command, const Arguments& arguments, bool live) {
  StatusOptions options;
  if (const auto code = ParseCommandLine(command, arguments, options)) return *code;
  const absl::Status status = Show(options, live);
  if (status.ok()) return kExitOk;
  return Fail(command, WithServerHint(status), absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure);
}

int StatusMain(const Arguments& arguments) {
  return Main(kStatusCommand, arguments, /*live=*/false);
}

int TopMain(const Arguments& arguments) {
  return Main(kTopCommand, arguments, /*live=*/true);
}

}  // namespace

const Command kStatusCommand = {.name = "status",
                                .summary = "say what the processes of a running cluster are doing",
                                .synopsis = "[--option=value ...]",
                                .environment = Environment::kRead,
                                .options = Declared<StatusOptions>,
                                .run = StatusMain};
const Command kTopCommand = {.name = "top",
                             .summary = "show the same, live in the terminal",
                             .synopsis = "[--option=value ...]",
                             .environment = Environment::kRead,
                             .options = Declared<StatusOptions>,
                             .run = TopMain};

}  // namespace winnow
