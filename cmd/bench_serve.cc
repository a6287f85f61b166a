#include <atomic>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_format.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/server_options.h"
#include "cmd/terminal/progress_line.h"
#include "cmd/terminal/stop_on_interrupt.h"
#include "tools/load/load_run.h"
#include "tools/load/report.h"
#include "tools/load/trace_file.h"

namespace winnow {
namespace {

constexpr char kBenchServeAbout[] =
    "Sends a workload to a running server, streams the answers and prints latency, throughput and goodput. Prompts "
    "are\n"
    "made-up token ids, answers are greedy and of the length that was asked for. Any server with OpenAI's\n"
    "/v1/completions can be measured with --protocol=http. Ctrl-C ends it with the figures of what was measured until\n"
    "then, and exit code 130.\n";

enum class Protocol : uint8_t { kHttp, kGrpc };

struct BenchServeOptions {
  Protocol protocol = Protocol::kHttp;
  HostPort server{"127.0.0.1", 0};
  LoadClientOptions client;
  uint32_t requests = 100;
  double rate = 0;
  uint32_t concurrency = 0;
  std::string input = "1k";
  std::string output = "128";
  uint32_t prefixes = 0;
  double shared = 0.5;
  std::string trace;
  double speed = 1;
  uint64_t seed = 1;
  uint32_t first_token_id = 100;
  uint32_t token_ids = 3000;
  double ttft_ms = 0, tpot_ms = 0, end_to_end_ms = 0;
  bool json = false;
  std::string out;
  std::string plot;
  bool quiet = false;

  void Declare(Fields& fields) {
    fields.Enum("protocol", &protocol, {{"http", Protocol::kHttp}, {"grpc", Protocol::kGrpc}},
                "How to talk to the server.");
    DeclareServer(fields, &server, "without a port, 8000 for http, 8001 for grpc.");
    fields.Text("model", &client.model, "Name of the model in requests; winnow needs none.");
    DeclareApiKey(fields, &client.api_key);
    fields.Text("selection", &client.selection, "Selection specification for every request (winnow only).");
    fields.Integer("requests", &requests, "How many to send; of a trace, the first so many.", 1u, 10000000u);
    fields.Number("rate", &rate, "Requests per second, with Poisson arrivals; 0 = a closed loop.", 0, 1e6);
    fields.Integer("concurrency", &concurrency,
                   "Most requests at once: the clients of a closed loop; 0 = 1 in a closed loop, otherwise 1024. What "
                   "arrives beyond it is sent late, and said so.",
                   0u, 16384u);
    fields.Text("input", &input, "Prompt lengths: TOKENS, LOW-HIGH, or a list of these with weights: 1k:3,8k-16k:1.");
    fields.Text("output", &output, "Answer lengths, likewise.");
    fields.Integer("prefixes", &prefixes, "Shared prefixes in use; each prompt begins with one. 0 = none.", 0u,
                   10000000u);
    fields.Number("shared", &shared, "Share of a prompt that its prefix is.", 0, 1);
    fields.File("trace", &trace, "JSONL trace in Mooncake's format instead of rate, input, output and prefixes.");
    fields.Number("speed", &speed, "Plays a trace so many times faster.", 1e-3, 1e3);
    fields.Integer("seed", &seed, "Of everything that is drawn.", uint64_t{0}, uint64_t{1} << 62);
    fields.Integer("first-token-id", &first_token_id, "Prompts are made of ids from here on ...", 0u, 10000000u);
    fields.Integer("token-ids", &token_ids, "... so many of them; all must be in the model's vocabulary.", 1u,
                   10000000u);
    fields.Number("ttft-target", &ttft_ms,
                  "Goodput counts requests with at most so many ms to the first token; 0 = any.", 0, 1e9);
    fields.Number("tpot-target", &tpot_ms, "... per token after the first; 0 = any.", 0, 1e9);
    fields.Number("e2e-target", &end_to_end_ms, "... in all; 0 = any.", 0, 1e9);
    fields.Bool("json", &json, "Print JSON instead of a table: the figures and every request's times.");
    fields.File("out", &out, "File for the same JSON.");
    fields.File("plot", &plot, "File for an SVG of the distributions.");
    fields.Bool("quiet", &quiet, "No progress on stderr.");
  }

  LoadTargets Targets() const {
    LoadTargets targets;
    if (ttft_ms > 0) targets.ttft_s = ttft_ms / 1e3;
    if (tpot_ms > 0) targets.tpot_s = tpot_ms / 1e3;
    if (end_to_end_ms > 0) targets.end_to_end_s = end_to_end_ms / 1e3;
    return targets;
  }
};

absl::StatusOr<LengthMix> Lengths(const char* option, const std::string& text) {
  absl::StatusOr<LengthMix> mix = LengthMix::Parse(text);
  if (!mix.ok()) return Annotate(mix.status(), absl::StrCat("--", option));
  return mix;
}

// A trace says when requests come, how long they are and what they share.
absl::Status CheckTraceAlone(const BenchServeOptions& options) {
  const BenchServeOptions defaults;
  const std::pair<const char*, bool> given[] = {{"rate", options.rate != defaults.rate},
                                                {"input", options.input != defaults.input},
                                                {"output", options.output != defaults.output},
                                                {"prefixes", options.prefixes != defaults.prefixes},
                                                {"shared", options.shared != defaults.shared}};
  for (const auto& [name, is_given] : given) {
    if (is_given) return absl::InvalidArgumentError(absl::StrCat("--trace and --", name, " exclude each other"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PlannedRequest>> Requests(const BenchServeOptions& options) {
  if (!options.trace.empty()) {
    WINNOW_RETURN_IF_ERROR(CheckTraceAlone(options));
    return ReadTrace(options.trace, options.speed, options.requests);
  }
  if (options.speed != 1) return absl::InvalidArgumentError("--speed needs --trace");
  WorkloadOptions workload{.num_requests = options.requests,
                           .rate_per_s = options.rate,
                           .input = {},
                           .output = {},
                           .num_prefixes = options.prefixes,
                           .shared_fraction = options.shared,
                           .seed = options.seed};
  WINNOW_ASSIGN_OR_RETURN(workload.input, Lengths("input", options.input));
  WINNOW_ASSIGN_OR_RETURN(workload.output, Lengths("output", options.output));
  return PlanWorkload(workload);
}

absl::Status WriteFile(const char* option, const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("--", option, ": cannot write ", path));
}

// Said before a long run, not after it. What the file holds stays.
absl::Status CheckWritable(const char* option, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", option, ": cannot write ", path));
}

// What was measured: every option but the key.
nlohmann::ordered_json OptionsJson(BenchServeOptions& options) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const Fields fields = Fields::Of(options);
  for (const Field& field : fields.all()) {
    if (field.name != "api-key") json[field.name] = field.format();
  }
  return json;
}

// What was measured, and whether all of it was.
struct Measured {
  std::vector<RequestTimes> times;
  bool interrupted = false;
};

Measured Measure(const BenchServeOptions& options, const std::vector<PlannedRequest>& requests) {
  const StopOnInterrupt interrupt;
  ProgressLine progress(options.quiet);
  const std::unique_ptr<LoadClient> client =
      options.protocol == Protocol::kHttp ? NewHttpLoadClient(options.client) : NewGrpcLoadClient(options.client);
  std::atomic<size_t> ended{0};
  Measured measured;
  {
    const TickingLine line(progress, [&](std::chrono::duration<double> elapsed) {
      return absl::StrCat(
          ProgressBar(static_cast<double>(ended.load()), static_cast<double>(requests.size()), "requests"), ", ",
          ElapsedText(elapsed));
    });
    measured.times = RunLoad(requests,
                             {.concurrency = options.concurrency,
                              .first_token_id = options.first_token_id,
                              .num_token_ids = options.token_ids,
                              .on_ended = [&ended](size_t count) { ended = count; },
                              .stop = interrupt.token()},
                             *client);
  }
  measured.interrupted = interrupt.interrupted();
  return measured;
}

absl::Status Report(BenchServeOptions& options, const Measured& measured, size_t planned) {
  const std::vector<RequestTimes>& times = measured.times;
  const LoadSummary summary = Summarize(times, options.Targets());
  nlohmann::ordered_json json = SummaryJson(summary, times);
  json["interrupted"] = measured.interrupted;
  json["options"] = OptionsJson(options);
  if (options.json) {
    std::printf("%s\n", json.dump(1).c_str());
  } else {
    if (measured.interrupted) std::printf("interrupted: %zu of %zu requests were measured\n", times.size(), planned);
    std::printf("%s%s", SummaryText(summary, options.Targets()).c_str(), FailureText(times).c_str());
  }
  if (!options.out.empty()) WINNOW_RETURN_IF_ERROR(WriteFile("out", options.out, json.dump(1) + "\n"));
  if (!options.plot.empty()) {
    WINNOW_RETURN_IF_ERROR(
        WriteFile("plot", options.plot, SummaryPlot(times, absl::StrCat(times.size(), " requests"))));
  }
  if (measured.interrupted) return absl::CancelledError("interrupted");
  if (summary.completed > 0) return absl::OkStatus();
  return WithServerHint(absl::UnavailableError(
      absl::StrCat("no request was answered at ", options.client.address, ": ", times.front().error)));
}

absl::Status Run(BenchServeOptions options) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<PlannedRequest> requests, Requests(options));
  WINNOW_RETURN_IF_ERROR(CheckWritable("out", options.out));
  WINNOW_RETURN_IF_ERROR(CheckWritable("plot", options.plot));
  if (options.server.port == 0) options.server.port = options.protocol == Protocol::kHttp ? kHttpPort : kGrpcPort;
  options.client.address = options.server.ToString();
  const bool closed_loop = options.trace.empty() && options.rate == 0;
  if (options.concurrency == 0) options.concurrency = closed_loop ? 1 : 1024;
  return Report(options, Measure(options, requests), requests.size());
}

int BenchServeMain(const Arguments& arguments) {
  BenchServeOptions options;
  if (const auto code = ParseCommandLine(kBenchServeCommand, arguments, options)) return *code;
  const absl::Status status = Run(options);
  if (absl::IsCancelled(status)) return kExitInterrupted;
  return status.ok() ? kExitOk : Fail(kBenchServeCommand, status);
}

}  // namespace

const Command kBenchServeCommand = {
    .name = "bench serve",
    .summary = "send a workload to a running server and measure latency, throughput and goodput",
    .synopsis = "[--option=value ...]",
    .about = kBenchServeAbout,
    .environment = Environment::kRead,
    .options = Declared<BenchServeOptions>,
    .run = BenchServeMain};

}  // namespace winnow
