#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "cmd/client/generation_client.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/server_options.h"
#include "cmd/terminal/progress_line.h"
#include "cmd/up/own_server.h"
#include "common/base/json.h"
#include "common/base/stop_signals.h"
#include "tools/batch/batch_run.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

constexpr char kBatchAbout[] =
    "Sends the requests of a file to a running server, or to one of its own (--model), and writes the answers to "
    "another.\n"
    "Both files are in the format of OpenAI's batches. Run it again to go on where it ended: what has an answer is not "
    "sent\n"
    "again, what failed is. Ctrl-C waits for the answers under way, a second one does not. The exit status is 1 when "
    "lines\n"
    "failed, 130 when it was interrupted.\n";

// A server answers within its own deadline, at most an hour.
constexpr std::chrono::hours kPatience{1};

struct BatchOptions {
  std::string out;
  HostPort server{"127.0.0.1", kHttpPort};
  std::string api_key;
  std::string tls_ca;
  std::string model;
  uint32_t concurrency = 16;
  uint32_t retries = BatchRunOptions().retries;
  bool json = false;

  void Declare(Fields& fields) {
    fields.File("out", &out, "File for the answers, a line each as they come.");
    DeclareServer(fields, &server, "its HTTP address; without a port, 8000.");
    DeclareApiKey(fields, &api_key);
    fields.File("tls-ca", &tls_ca, "Certificates (PEM) of those who sign the server's. Empty = the server has no TLS.");
    fields.Text("model", &model,
                "Folder of a model: starts a server on it, with the defaults of `winnow up` and what the environment "
                "says, and ends it with the batch. Empty = the server at --server.");
    fields.Integer("concurrency", &concurrency, "Most requests at once.", 1u, 1024u);
    fields.Integer("retries", &retries,
                   "How often a request is sent again that the server had no room for, could not serve at the moment, "
                   "or did not answer.",
                   0u, 1000u);
    fields.Bool("json", &json, "Print the summary as JSON.");
  }
};

using Clock = std::chrono::steady_clock;

std::string ProgressText(const BatchCounts& counts, std::chrono::duration<double> elapsed) {
  const size_t done = counts.before + counts.answered + counts.failed;
  std::string text = ProgressBar(static_cast<double>(done), static_cast<double>(counts.requests), "requests");
  if (counts.failed > 0) absl::StrAppend(&text, ", ", counts.failed, " failed");
  const double per_second = static_cast<double>(counts.answered + counts.failed) / elapsed.count();
  if (per_second > 0) absl::StrAppendFormat(&text, ", %.1f/s, %.0f s left", per_second, counts.left() / per_second);
  return text;
}

void PrintSummary(const BatchCounts& counts, double seconds) {
  std::printf("%zu requests: %zu answered", counts.requests, counts.answered);
  if (counts.before > 0) std::printf(", %zu answered before", counts.before);
  std::printf(", %zu failed", counts.failed);
  if (counts.left() > 0) std::printf(", %zu not sent or not answered", counts.left());
  std::printf("; %.1f s, %llu prompt and %llu completion tokens\n", seconds,
              static_cast<unsigned long long>(counts.prompt_tokens),
              static_cast<unsigned long long>(counts.completion_tokens));
  for (const auto& [kind, times] : counts.failures) std::printf("  %s: %zu\n", kind.c_str(), times);
  for (const std::string& failure : counts.first_failures) std::printf("  %s\n", failure.c_str());
  std::fflush(stdout);
}

void PrintJson(const BatchCounts& counts, double seconds) {
  const nlohmann::ordered_json json = {{"requests", counts.requests},
                                       {"answered", counts.answered},
                                       {"answered_before", counts.before},
                                       {"failed", counts.failed},
                                       {"left", counts.left()},
                                       {"seconds", seconds},
                                       {"prompt_tokens", counts.prompt_tokens},
                                       {"completion_tokens", counts.completion_tokens},
                                       {"failures", counts.failures},
                                       {"first_failures", counts.first_failures}};
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

// The exit code.
absl::StatusOr<int> Run(const BatchOptions& options, const std::string& path) {
  WINNOW_ASSIGN_OR_RETURN(BatchInput input, BatchInput::Open(path));
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<BatchOutput> output, BatchOutput::Open(options.out));
  std::unique_ptr<OwnServer> own;
  BatchRunOptions run_options{.server = {.address = options.server.ToString(),
                                         .patience = kPatience,
                                         .api_key = options.api_key,
                                         .tls_ca = options.tls_ca},
                              .concurrency = options.concurrency,
                              .retries = options.retries};
  if (!options.model.empty()) {
    // What the environment says of these options is the batch's, not the server's.
    BatchOptions own_options;
    ForgetEnvironment(Fields::Of(own_options));
    WINNOW_ASSIGN_OR_RETURN(own,
                            OwnServer::Start(options.model, [] { return StopSignalWithin(milliseconds(0)) != 0; }));
    run_options.server.address = own->http_address();
  }

  const auto start = Clock::now();
  BatchRun run(run_options, &input, output.get());
  ProgressLine progress;
  bool is_interrupted = false;
  while (!run.WaitFor(milliseconds(0))) {
    progress.Show(ProgressText(run.counts(), Clock::now() - start));
    if (StopSignalWithin(milliseconds(100)) == 0) continue;
    progress.Erase();
    if (is_interrupted) break;
    is_interrupted = true;
    run.Stop();
    std::fprintf(stderr, "winnow batch: waiting for %zu answers; Ctrl-C again drops them\n", run.under_way());
  }
  progress.Erase();
  const BatchCounts counts = run.counts();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  (options.json ? PrintJson : PrintSummary)(counts, seconds);
  // Threads that still wait for answers are not waited for. A server of its own dies with this process.
  if (is_interrupted && !run.WaitFor(milliseconds(0))) _exit(kExitInterrupted);
  WINNOW_RETURN_IF_ERROR(run.status());
  if (is_interrupted) return kExitInterrupted;
  return counts.failed > 0 ? kExitFailure : kExitOk;
}

int BatchMain(const Arguments& arguments) {
  BatchOptions options;
  std::vector<std::string> positionals;
  if (const auto code = ParseCommandLine(kBatchCommand, arguments, options, &positionals)) return *code;
  const auto refuse = [](std::string_view why) {
    return Fail(kBatchCommand, absl::InvalidArgumentError(AbslSv(why)), kExitUsage);
  };
  if (positionals.size() != 1) return refuse("give one file of requests");
  if (options.out.empty()) return refuse("--out FILE is required");
  BlockStopSignals();
  const absl::StatusOr<int> code = Run(options, positionals.front());
  if (code.ok()) return *code;
  if (absl::IsCancelled(code.status())) return kExitInterrupted;
  return Fail(kBatchCommand, code.status(), absl::IsInvalidArgument(code.status()) ? kExitUsage : kExitFailure);
}

}  // namespace

const Command kBatchCommand = {.name = "batch",
                               .summary = "send a file of requests to a server and write the answers to another",
                               .synopsis = "FILE.jsonl --out=FILE [--option=value ...]",
                               .about = kBatchAbout,
                               .operands = {.files = true},
                               .environment = Environment::kRead,
                               .options = Declared<BatchOptions>,
                               .run = BatchMain};

}  // namespace winnow
