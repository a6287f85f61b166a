// winnow probe: one question to one process, for health checks where there is no curl.
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/server_options.h"
#include "cmd/up/http_probe.h"

namespace winnow {
namespace {

struct ProbeOptions {
  HostPort server{"127.0.0.1", kMetricsPort};
  std::string path = "/ready";
  std::chrono::microseconds timeout{5'000'000};

  void Declare(Fields& fields) {
    DeclareServer(fields, &server, "the metrics address of a process; without a port, 9100.");
    fields.Text("path", &path, "What is asked: /ready, /live or /health.");
    fields.Duration("timeout", &timeout, "Without an answer within this time it fails.");
  }
};

absl::Status Probe(const ProbeOptions& options) {
  const std::string address = options.server.ToString();
  WINNOW_ASSIGN_OR_RETURN(
      const HttpAnswer answer,
      HttpGet(address, options.path, std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout)));
  if (answer.status == 200) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(address, " answers ", options.path, " with ", answer.status, ": ", answer.body));
}

int ProbeMain(const Arguments& arguments) {
  ProbeOptions options;
  if (const auto code = ParseCommandLine(kProbeCommand, arguments, options)) return *code;
  const absl::Status status = Probe(options);
  return status.ok() ? kExitOk : Fail(kProbeCommand, status);
}

}  // namespace

const Command kProbeCommand = {.name = "probe",
                               .summary = "ask a process whether it is ready, for health checks",
                               .synopsis = "[--option=value ...]",
                               .options = Declared<ProbeOptions>,
                               .run = ProbeMain};

}  // namespace winnow
