#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/manifest/manifest.h"
#include "cmd/plan/cluster_memory.h"
#include "cmd/plan/placement_choice.h"
#include "cmd/role/options/opentelemetry.h"
#include "cmd/terminal/progress_line.h"
#include "cmd/up/advice.h"
#include "cmd/up/http_probe.h"
#include "cmd/up/supervisor.h"
#include "cmd/up/up_options.h"
#include "common/base/json.h"
#include "common/config/host_address.h"
#include "common/config/listen_address.h"
#include "kernels/plugin/plugin.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kNoticeInterval{10};
// A cluster that serves is ready after so long, whoever does not reach whom.
constexpr std::chrono::seconds kLinksLimit{15};
constexpr milliseconds kRegistryLimit{1000};

// Takes the address that a process has reported, if it has, so that its next run listens there again.
void KeepAddress(const Supervisor::Addresses& known, const char* key, HostPort& address) {
  const auto it = known.find(key);
  if (it == known.end()) return;
  const absl::StatusOr<HostPort> parsed = ParseHostPort(it->second);
  if (parsed.ok()) address = *parsed;
}

// One line for a port that is taken, before anything is started.
absl::Status CheckPorts(const UpOptions& options) {
  if (options.part.has_router) {
    for (int i = 0; i < options.routers; ++i) {
      WINNOW_RETURN_IF_ERROR(Annotate(CheckListenAddress(options.HttpAddress(i).ToString()).status(), "--http"));
      WINNOW_RETURN_IF_ERROR(Annotate(CheckListenAddress(options.GrpcAddress(i).ToString()).status(), "--grpc"));
    }
  }
  for (int process = 0; process < options.num_processes(); ++process) {
    WINNOW_RETURN_IF_ERROR(
        Annotate(CheckListenAddress(options.MetricsAddress(process).ToString()).status(), "--metrics"));
  }
  return absl::OkStatus();
}

std::vector<std::string> ArgumentsOf(const std::string& program, const char* role) {
  return {program, role, absl::StrCat("--config=/dev/fd/", kConfigFd)};
}

// A child whose options come from `make` and which keeps the ports that it was given.
template <class Options>
Supervisor::Child Role(const std::string& program, const char* role, Options options) {
  std::string name = options.process.rank;
  return {std::move(name), ArgumentsOf(program, role), [options](const Supervisor::Addresses& known) {
            Options next = options;
            KeepAddress(known, "grpc", next.process.grpc);
            KeepAddress(known, "metrics", next.process.metrics);
            if constexpr (std::is_same_v<Options, RouterProcessOptions>) KeepAddress(known, "http", next.http);
            return DumpYaml(Fields::Of(next));
          }};
}

// The router's answers under way may go on for a while before anything ends.
Supervisor::Options SupervisorOptions(const UpOptions& options, ProgressLine& progress) {
  Supervisor::Options supervisor;
  supervisor.write_log = [&progress](std::string_view lines) { progress.WriteAbove(lines); };
  supervisor.grace += std::chrono::duration_cast<milliseconds>(options.drain_delay + options.stop_grace);
  return supervisor;
}

// What a process has in memory; 0 when there is none.
double ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  double all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// A cluster comes up without its registry, and those who look for it there do not find it.
void NoticeMissingRegistry(const DiscoveryOptions& discovery) {
  if (!discovery.registry || discovery.registry->encrypted) return;
  for (const HostPort& member : discovery.registry->endpoints) {
    if (HttpGet(member.ToString(), "/health", kRegistryLimit).ok()) return;
  }
  std::fprintf(
      stderr,
      "winnow up: the registry %s does not answer. Processes of this cluster find each other without it, those "
      "of others do not; it is tried again until it is there\n",
      discovery.registry->ToString().c_str());
}

class Cluster {
 public:
  Cluster(const UpOptions& options, std::string program)
      : options_(options), program_(std::move(program)), supervisor_(SupervisorOptions(options, progress_)) {}

  // Returns when the first request will succeed at every router, and every rank is known to reach the others; where
  // all routers are elsewhere, when the ranks have joined one.
  absl::Status Start() {
    std::vector<HostPort> known_routers;
    if (options_.part.has_router) {
      WINNOW_ASSIGN_OR_RETURN(known_routers, StartRouters());
    }
    known_routers.insert(known_routers.end(), options_.part.routers.begin(), options_.part.routers.end());
    if (!options_.hosts_cache()) {
      for (int i = 0; i < options_.cache_ranks; ++i) {
        WINNOW_RETURN_IF_ERROR(supervisor_.Start(Role(program_, "cache-rank", options_.CacheRank(i, known_routers))));
      }
    }
    for (int i = 0; i < options_.num_inference_ranks(); ++i) {
      WINNOW_RETURN_IF_ERROR(
          supervisor_.Start(Role(program_, "inference-rank", options_.InferenceRank(i, known_routers))));
    }
    WINNOW_RETURN_IF_ERROR(supervisor_.RunUntil([this] {
      ShowProgress();
      return supervisor_.AllReady() && RoutersAreReady();
    }));
    progress_.Erase();
    return absl::OkStatus();
  }

  absl::Status Run() {
    return supervisor_.KeepUp([this] { return AnyServes(); });
  }

  // Stops everything, and says why a process has failed: its last lines, which those of others may have hidden.
  // Returns the reason with what to do about it.
  absl::Status StopAndExplain(const absl::Status& reason) {
    progress_.Erase();
    supervisor_.StopAll();
    const Supervisor::Failure& failure = supervisor_.failure();
    if (failure.last_lines.size() > 1) {
      std::fprintf(stderr, "winnow up: the last lines of %s:\n", failure.name.c_str());
      for (const std::string& line : failure.last_lines) std::fprintf(stderr, "    %s\n", line.c_str());
    }
    return WithAdvice(reason, failure.signal_number);
  }

  std::string ReadyLine() const {
    std::vector<std::string> names = routers_;  // in the order of their ports
    for (int i = 0; i < options_.num_inference_ranks(); ++i) names.push_back(options_.InferenceRankName(i));
    for (int i = 0; !options_.hosts_cache() && i < options_.cache_ranks; ++i) {
      names.push_back(options_.CacheRankName(i));
    }
    const std::string metrics = Addresses(names, "metrics");
    if (!options_.part.has_router) return absl::StrCat("ready node=", options_.node, " metrics=", metrics);
    return absl::StrCat("ready http=", Addresses(routers_, "http"), " grpc=", Addresses(routers_, "grpc"),
                        " metrics=", metrics);
  }

 private:
  // Returns where the ranks of this machine register.
  absl::StatusOr<std::vector<HostPort>> StartRouters() {
    for (int i = 0; i < options_.routers; ++i) {
      const RouterProcessOptions router = options_.Router(i);
      routers_.push_back(router.process.rank);
      Supervisor::Child child = Role(program_, "router", router);
      child.drains_first = true;
      WINNOW_RETURN_IF_ERROR(supervisor_.Start(std::move(child)));
    }
    WINNOW_RETURN_IF_ERROR(supervisor_.RunUntil([this] { return supervisor_.AllReady(); }));
    std::vector<HostPort> addresses;
    for (const std::string& name : routers_) {
      WINNOW_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(Address(name, "grpc")));
      if (!options_.part.host.empty()) address.host = options_.part.host;
      if (IsWildcardHost(address.host)) address.host = "127.0.0.1";
      addresses.push_back(std::move(address));
    }
    return addresses;
  }

  std::string Addresses(const std::vector<std::string>& names, const char* key) const {
    std::string list;
    for (const std::string& name : names) absl::StrAppend(&list, list.empty() ? "" : ",", Address(name, key));
    return list;
  }

  std::string Address(const std::string& name, const char* key) const {
    const Supervisor::Addresses& addresses = supervisor_.addresses(name);
    const auto it = addresses.find(key);
    return it == addresses.end() ? "?" : it->second;
  }

  // Whether requests are served although a process is missing.
  bool AnyServes() const {
    if (!options_.part.has_router) return supervisor_.AllReady();
    return std::any_of(routers_.begin(), routers_.end(),
                       [this](const std::string& router) { return AskWhetherReady(router).ok(); });
  }

  // The router's word on it; an error has its reason.
  absl::Status AskWhetherReady(const std::string& router) const {
    WINNOW_ASSIGN_OR_RETURN(const HttpAnswer answer, HttpGet(Address(router, "metrics"), "/ready", milliseconds(1000)));
    return answer.status == 200 ? absl::OkStatus() : absl::UnavailableError(answer.body);
  }

  // UNAVAILABLE while an inference rank does not reach a cache rank, or the router has not been told yet.
  absl::Status AskForLinks(const std::string& router) const {
    WINNOW_ASSIGN_OR_RETURN(const HttpAnswer answer, HttpGet(Address(router, "metrics"), "/ranks", milliseconds(1000)));
    const auto list = ParseJson(answer.body);
    if (!list.is_object()) return absl::UnavailableError("its list of ranks cannot be read");
    for (const auto& rank : list.value("ranks", nlohmann::json::array())) {
      if (!rank.contains("does_not_reach")) continue;
      return absl::UnavailableError(
          absl::StrCat(rank.value("rank", "?"), " has not reached ", rank["does_not_reach"].dump(), " yet"));
    }
    return absl::OkStatus();
  }

  // The first error of a router.
  absl::Status AskAll(absl::Status (Cluster::*ask)(const std::string& router) const) const {
    for (const std::string& router : routers_) {
      const absl::Status said = (this->*ask)(router);
      WINNOW_RETURN_IF_ERROR(routers_.size() > 1 ? Annotate(said, router) : said);
    }
    return absl::OkStatus();
  }

  // On a node other machines' ranks may be missing: it does its part all the same.
  bool RoutersAreReady() {
    if (!options_.part.host.empty()) return true;
    absl::Status ready = AskAll(&Cluster::AskWhetherReady);
    const auto now = std::chrono::steady_clock::now();
    if (ready.ok()) {
      // Requests would be served; those of the first second are to find every rank, not the first that was there.
      if (!serves_since_) serves_since_ = now;
      ready = AskAll(&Cluster::AskForLinks);
      if (ready.ok() || now - *serves_since_ > kLinksLimit) return true;
    }
    if (now >= next_notice_) {
      progress_.WriteAbove(absl::StrCat("winnow up: waiting for the router to be ready: ", ready.message(), "\n"));
      next_notice_ = now + kNoticeInterval;
    }
    return false;
  }

  // Who is waited for, and, of ranks that load a model, how much of it they may have: what lies in their memory.
  void ShowProgress() {
    if (!progress_.shows()) return;
    std::string text;
    for (const std::string& name : supervisor_.NotReady()) {
      const double mebibytes = ResidentBytes(supervisor_.pid(name)) / 1048576.0;
      absl::StrAppendFormat(&text, "%s%s (%.0f MiB in memory)", text.empty() ? "" : ", ", name, mebibytes);
    }
    if (text.empty()) text = "the router to reach all ranks";
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    progress_.Show(absl::StrCat("waiting for ", text, ", ", ElapsedText(elapsed)));
  }

  const UpOptions& options_;
  const std::string program_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  ProgressLine progress_;
  Supervisor supervisor_;
  std::vector<std::string> routers_;
  std::optional<std::chrono::steady_clock::time_point> serves_since_;
  std::chrono::steady_clock::time_point next_notice_ = std::chrono::steady_clock::now() + kNoticeInterval;
};

// None where they would not be used.
int CountGpusFor(const DeviceChoice& device) {
  if (device.kind == DeviceChoice::Kind::kCpu) return 0;
  const absl::StatusOr<const device::DeviceTable*> table = device::LoadPlugin();
  return table.ok() ? (*table)->device_count() : 0;
}

absl::Status Run(const UpOptions& options) {
  WINNOW_RETURN_IF_ERROR(WithAdvice(CheckPorts(options)));
  WINNOW_RETURN_IF_ERROR(CheckFitsTogether(options, CountGpusFor(options.device)));
  NoticeMissingRegistry(options.discovery);
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length <= 0) return absl::InternalError("cannot read /proc/self/exe");
  Cluster cluster(options, std::string(program, length));
  absl::Status status = cluster.Start();
  if (status.ok()) {
    std::printf("%s\n", cluster.ReadyLine().c_str());
    std::fflush(stdout);
    status = cluster.Run();
  }
  return absl::IsCancelled(status) ? status : cluster.StopAndExplain(status);
}

void ChooseSelection(UpOptions& options) {
  if (!ChooseInPlaceSelection(options, CountGpusFor(options.device))) return;
  std::fprintf(stderr, "winnow up: one GPU selects in place: --selection=%s\n",
               options.selection.specification.c_str());
}

// The processes get all of their options from here.
void ForgetOptionsOfProcesses(UpOptions options) {
  RouterProcessOptions router;
  InferenceProcessOptions inference;
  CacheProcessOptions cache;
  for (const Fields& fields : {Fields::Of(options), Fields::Of(router), Fields::Of(inference), Fields::Of(cache)}) {
    ForgetEnvironment(fields);
  }
}

// Options that the manifest says, below those of the command line.
absl::StatusOr<UpOptions> FromManifest(const UpOptions& given) {
  WINNOW_ASSIGN_OR_RETURN(const Manifest manifest, LoadManifest(given.file));
  return manifest.OptionsOf(given.node);
}

int UpMain(const Arguments& given) {
  const Arguments arguments = WithLongNames(given);
  UpOptions options;
  const TracingFlags tracing = OpenTelemetryDefaults::Read().tracing;
  options.tracing = tracing;
  if (const auto code = ParseCommandLine(kUpCommand, arguments, options)) return *code;
  if (!options.file.empty()) {
    absl::StatusOr<UpOptions> manifest = FromManifest(options);
    if (!manifest.ok()) return Fail(kUpCommand, manifest.status(), kExitUsage);
    options = *std::move(manifest);
    if (options.tracing.otlp_endpoint.empty()) options.tracing.otlp_endpoint = tracing.otlp_endpoint;
    if (const auto code = ParseCommandLine(kUpCommand, arguments, options)) return *code;
  } else if (!options.node.empty()) {
    return Fail(kUpCommand, absl::InvalidArgumentError("--node needs a manifest (-f FILE)"), kExitUsage);
  }
  ForgetOptionsOfProcesses(options);
  if (const absl::Status status = options.Validate(); !status.ok()) return Fail(kUpCommand, status, kExitUsage);
  ChooseSelection(options);
  const absl::Status status = Run(options);
  return absl::IsCancelled(status) ? 0 : Fail(kUpCommand, status);
}

}  // namespace

const Command kUpCommand = {
    .name = "up",
    .summary = "serve a model on this machine: router, inference ranks and cache ranks, looked after",
    .synopsis = "(--model DIR | -f FILE [--node NAME]) [--option=value ...]",
    .environment = Environment::kRead,
    .options = Declared<UpOptions>,
    .run = UpMain};

}  // namespace winnow
