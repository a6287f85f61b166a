#include <cstdio>
#include <fstream>

#include "absl/strings/str_split.h"
#include "cmd/chaos/chaos_options.h"
#include "cmd/chaos/modes/modes.h"
#include "cmd/chaos/modes/trial.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/terminal/progress_line.h"
#include "cmd/terminal/stop_on_interrupt.h"
#include "common/base/stop_signals.h"

namespace winnow {
namespace {

using namespace chaos;
using std::chrono::milliseconds;

constexpr char kAbout[] =
    "Tortures a cluster of real processes under load and says whether it kept its promises. What follows -- are "
    "options\n"
    "of `winnow up`, by which a cluster is started for it, on free ports and without a prefix cache unless they say\n"
    "otherwise; with --server and --metrics it is one that runs on this host. Only processes that its routers name "
    "are\n"
    "signalled. Each request is asked alone first: every answer under faults must have the same tokens and text. A "
    "fault\n"
    "without evidence of its effect fails the run. Exit code 0: nothing failed. docs/reliability.md says how to read\n"
    "the report.\n";

milliseconds InMilliseconds(std::chrono::microseconds time) {
  return std::chrono::duration_cast<milliseconds>(time);
}

// What the faults need that are to be done.
Isolation NeedsOf(const ChaosOptions& options, const FaultPlan& plan) {
  Isolation needs;
  if (options.mode != Mode::kFaults && options.mode != Mode::kHeal) return needs;
  for (const FaultKind& kind : plan.kinds) {
    needs.networks |= kind.Needs().networks;
    needs.small_disk |= kind.Needs().small_disk;
  }
  return needs;
}

absl::StatusOr<std::unique_ptr<Cluster>> FindCluster(const ChaosOptions& options, const FaultPlan& plan,
                                                     const std::vector<std::string>& up_options) {
  const Isolation needs = NeedsOf(options, plan);
  if (!options.starts_cluster()) {
    if (needs.networks || needs.small_disk) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--faults=", options.faults, ": links and disks are struck only of a cluster that is started here, whose ",
          "processes have networks and a disk of their own"));
    }
    for (const FaultKind& kind : plan.kinds) {
      if (!kind.gives_orders()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--faults=", AbslSv(kind.name), ": ranks are drained only of a cluster that is started here"));
    }
    return Cluster::Attach(absl::StrSplit(options.server, ','), absl::StrSplit(options.metrics, ','));
  }
  std::vector<std::string> all = {"--prefix-cache=false"};
  all.insert(all.end(), up_options.begin(), up_options.end());
  return Cluster::Start(WithLongNames(std::move(all)), needs, options.cluster_log,
                        [] { return StopSignalWithin(milliseconds(0)) != 0; });
}

std::string Intentions(const ChaosOptions& options, const Cluster& cluster) {
  std::string text = options.mode == Mode::kFaults || options.mode == Mode::kHeal
                         ? absl::StrCat(options.trials, " trials of ", options.faults, " on these processes:\n")
                         : "load on these processes:\n";
  for (const auto& [rank, member] : cluster.first_members()) {
    absl::StrAppend(&text, "  ", member.Name(), ", ", member.role, ", metrics at ", member.metrics.ToString(), "\n");
  }
  return text;
}

absl::StatusOr<Findings> RunMode(const ChaosOptions& options, const FaultPlan& plan, Session& session) {
  switch (options.mode) {
    case Mode::kFaults:
      return RunTrials(session, plan);
    case Mode::kHeal:
      return RunHeal(session, {.faults = plan,
                               .clients = options.streams,
                               .window = InMilliseconds(options.window),
                               .deadline = InMilliseconds(options.deadline)});
    case Mode::kCancel:
      return RunCancels(session, {.cancels = options.cancels, .clients = options.streams});
    case Mode::kOverload:
      return RunOverload(session, {.lasts = InMilliseconds(options.duration), .clients = options.streams});
    case Mode::kSoak:
      return RunSoak(session, {.lasts = InMilliseconds(options.duration), .clients = options.streams});
  }
  return absl::InternalError("unknown mode");
}

absl::Status AskAloneWithProgress(Session& session) {
  ProgressLine line;
  const Clock::time_point begin = Clock::now();
  absl::Status status = AskAlone(session, [&](size_t done) {
    line.Show(ProgressBar(static_cast<double>(done), static_cast<double>(session.requests.size()), "requests alone"));
  });
  line.Erase();
  if (status.ok()) {
    session.say(absl::StrCat(session.requests.size(), " requests answered alone in ", TimeText(Clock::now() - begin),
                             ": their tokens and texts are the truth\n"));
  }
  return status;
}

absl::Status Report(const ChaosOptions& options, const Findings& findings) {
  for (const std::string& failure : findings.failures) std::printf("FAILED: %s\n", failure.c_str());
  std::printf("%s (seed %llu)\n", findings.failures.empty() ? "PASSED" : "FAILED",
              static_cast<unsigned long long>(options.seed));
  if (options.json.empty()) return absl::OkStatus();
  nlohmann::ordered_json json = {{"seed", options.seed}, {"passed", findings.failures.empty()}};
  json["failures"] = findings.failures;
  json["results"] = findings.json;
  std::ofstream file(options.json);
  file << json.dump(1) << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("--json: cannot write " + options.json);
}

// The exit code.
absl::StatusOr<int> Run(const ChaosOptions& options, const std::vector<std::string>& up_options) {
  WINNOW_ASSIGN_OR_RETURN(const RequestOptions request_options, options.Requests());
  WINNOW_ASSIGN_OR_RETURN(const FaultPlan plan, options.Faults());
  WINNOW_ASSIGN_OR_RETURN(std::vector<Request> requests, DrawRequests(request_options));
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster, FindCluster(options, plan, up_options));
  std::printf("%s", Intentions(options, *cluster).c_str());
  std::fflush(stdout);
  if (!cluster->is_own() && !options.yes) {
    return absl::InvalidArgumentError("nothing was done: this command did not start the cluster; --yes does it");
  }
  const StopOnInterrupt interrupt;
  Session session{.cluster = cluster.get(),
                  .requests = std::move(requests),
                  .truths = {},
                  .baseline = {},
                  .slack = {options.rss_slack_bytes, options.descriptor_slack, options.thread_slack},
                  .limits = {.held = InMilliseconds(options.settle)},
                  .stream = {.routers = cluster->http(),
                             .api_key = options.api_key,
                             .patience = InMilliseconds(options.patience),
                             .stop = interrupt.token()},
                  .spread = InMilliseconds(options.spread),
                  .seed = options.seed,
                  .control = options.control,
                  .stop = interrupt.token(),
                  .say = [](std::string_view text) {
                    std::fwrite(text.data(), 1, text.size(), stdout);
                    std::fflush(stdout);
                  }};
  WINNOW_RETURN_IF_ERROR(AskAloneWithProgress(session));
  session.baseline = Baseline::Of(*cluster);
  WINNOW_ASSIGN_OR_RETURN(const Findings findings, RunMode(options, plan, session));
  if (interrupt.interrupted()) return kExitInterrupted;
  WINNOW_RETURN_IF_ERROR(Report(options, findings));
  return findings.failures.empty() ? kExitOk : kExitFailure;
}

int ChaosMain(const Arguments& arguments) {
  ChaosOptions options;
  std::vector<std::string> up_options;
  if (const auto code = ParseCommandLine(kChaosCommand, arguments, options, &up_options)) return *code;
  const auto refuse = [](std::string_view why) {
    return Fail(kChaosCommand, absl::InvalidArgumentError(AbslSv(why)), kExitUsage);
  };
  if (options.server.empty() != options.metrics.empty()) return refuse("--server and --metrics need each other");
  if (options.starts_cluster() && up_options.empty()) {
    return refuse("give options of `winnow up` behind --, or a cluster that runs with --server and --metrics");
  }
  if (!options.starts_cluster() && !up_options.empty())
    return refuse("--server and options of `winnow up` exclude each other");
  BlockStopSignals();
  const absl::StatusOr<int> code = Run(options, up_options);
  if (code.ok()) return *code;
  if (absl::IsCancelled(code.status())) return kExitInterrupted;
  return Fail(kChaosCommand, code.status(), absl::IsInvalidArgument(code.status()) ? kExitUsage : kExitFailure);
}

}  // namespace

const Command kChaosCommand = {
    .name = "chaos",
    .summary = "torture a cluster: kill and stop its processes under load, and compare answers",
    .synopsis = "[--option=value ...] (-- OPTIONS OF winnow up | --server=A --metrics=B --yes)",
    .about = kAbout,
    .options = Declared<ChaosOptions>,
    .run = ChaosMain};

}  // namespace winnow
