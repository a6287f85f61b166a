#include "cmd/chaos/cluster/own_processes.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_split.h"
#include "cmd/chaos/cluster/process.h"
#include "cmd/chaos/sandbox/mounts.h"
#include "cmd/up/up_options.h"
#include "common/base/json.h"
#include "common/config/load.h"

namespace winnow::chaos {
namespace {

constexpr uint16_t kHttpPort = 8000;

// The values of a ready line: "ready http=A grpc=B metrics=C,D".
std::map<std::string, std::string> ValuesOf(const std::string& ready_line) {
  std::map<std::string, std::string> values;
  std::istringstream words(ready_line);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) values[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return values;
}

// A process of a cluster as a node of its own.
struct Node {
  std::string rank;
  const char* what;  // it has, in a manifest
};

// Checks the options.
absl::StatusOr<UpOptions> ParseForNodes(const std::vector<std::string>& arguments) {
  UpOptions options;
  WINNOW_RETURN_IF_ERROR(LoadOptions(Fields::Of(options), arguments).status());
  if (!options.file.empty()) {
    return absl::InvalidArgumentError(
        "processes with networks of their own are made from options of `winnow up`, not from a manifest (--file)");
  }
  if (options.hosts_cache()) {
    return absl::InvalidArgumentError("--transport=inproc: there are no links between processes to be struck");
  }
  return options;
}

// Which processes the options mean, the routers first.
std::vector<Node> NodesOf(const UpOptions& options) {
  std::vector<Node> nodes;
  for (int i = 0; i < options.routers; ++i) nodes.push_back({options.RouterName(i), "router: true"});
  for (int i = 0; i < options.num_inference_ranks(); ++i) {
    const char* const what = !options.splits_phases()    ? "inference_ranks: 1"
                             : i < options.prefill_ranks ? "prefill_ranks: 1"
                                                         : "decode_ranks: 1";
    nodes.push_back({options.InferenceRankName(i), what});
  }
  for (int i = 0; i < options.cache_ranks; ++i) nodes.push_back({options.CacheRankName(i), "cache_ranks: 1"});
  return nodes;
}

std::string ManifestOf(const UpOptions& options, const std::vector<Node>& nodes, const Network& network) {
  // What else there is to say the command line of each node says.
  std::string yaml = absl::StrCat("model:\n  path: ", nlohmann::json(options.model).dump(),
                                  "\nrouter:\n  http: 0.0.0.0:", kHttpPort, "\nsecurity:\n  insecure: true\nnodes:\n");
  for (const Node& node : nodes) {
    absl::StrAppend(&yaml, "  ", node.rank, ":\n    address: ", network.AddressOf(node.rank), "\n    ", node.what,
                    "\n");
  }
  return yaml;
}

// Each node would take the whole machine.
std::vector<std::string> ShareOfMachine(const UpOptions& options) {
  std::vector<std::string> share = {absl::StrCat("--threads=", options.InferenceRank(0, {}).threads)};
  const int64_t memory = options.CacheRank(0, {}).cache.memory_bytes;
  if (memory > 0) share.push_back(absl::StrCat("--cache-memory=", memory));
  return share;
}

// Those of the options that hold for every node: how many there are of each role the manifest says.
std::vector<std::string> WithoutCounts(const std::vector<std::string>& options) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string name = options[i].substr(0, options[i].find('='));
    const bool counts = name == "--routers" || name == "--inference-ranks" || name == "--prefill-ranks" ||
                        name == "--decode-ranks" || name == "--cache-ranks";
    if (!counts) kept.push_back(options[i]);
    if (counts && name == options[i]) ++i;  // its value is the next word
  }
  return kept;
}

std::string LastLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnProcesses>> OwnProcesses::Start(const std::vector<std::string>& options,
                                                                  const Isolation& isolation,
                                                                  const std::string& log_file,
                                                                  bool (*is_interrupted)()) {
  std::unique_ptr<OwnProcesses> own(new OwnProcesses());
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length <= 0) return absl::InternalError("cannot read /proc/self/exe");
  const std::string winnow(program, static_cast<size_t>(length));
  if (!isolation.networks) {
    WINNOW_RETURN_IF_ERROR(own->Isolate(isolation, {}));
    std::vector<std::string> command = {winnow, "up", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
                                        "--metrics=127.0.0.1:0"};
    command.insert(command.end(), options.begin(), options.end());
    WINNOW_RETURN_IF_ERROR(own->StartPart(std::move(command), "", log_file, is_interrupted));
    return own;
  }
  WINNOW_ASSIGN_OR_RETURN(const UpOptions parsed, ParseForNodes(options));
  const std::vector<Node> nodes = NodesOf(parsed);
  std::vector<std::string> ranks;
  for (const Node& node : nodes) ranks.push_back(node.rank);
  WINNOW_RETURN_IF_ERROR(own->Isolate(isolation, ranks));
  const std::string manifest = absl::StrCat(Network::kFolder, "/nodes.yaml");
  std::ofstream(manifest) << ManifestOf(parsed, nodes, *own->network_);
  std::vector<std::string> shared = ShareOfMachine(parsed);
  for (std::string& option : WithoutCounts(options)) shared.push_back(std::move(option));
  for (const Node& node : nodes) {
    WINNOW_ASSIGN_OR_RETURN(std::vector<std::string> command, own->network_->CommandPrefix(node.rank));
    for (const std::string& word : {winnow, std::string("up"), "--file=" + manifest, "--node=" + node.rank}) {
      command.push_back(word);
    }
    command.insert(command.end(), shared.begin(), shared.end());
    WINNOW_RETURN_IF_ERROR(own->StartPart(std::move(command), own->network_->AddressOf(node.rank),
                                          log_file.empty() ? "" : absl::StrCat(log_file, ".", node.rank),
                                          is_interrupted));
  }
  WINNOW_RETURN_IF_ERROR(own->network_->EnterAsClient());
  return own;
}

absl::Status OwnProcesses::Isolate(const Isolation& isolation, const std::vector<std::string>& ranks) {
  if (!isolation.networks && !isolation.small_disk) return absl::OkStatus();
  WINNOW_RETURN_IF_ERROR(TakeOwnMounts());
  if (isolation.small_disk) {
    WINNOW_ASSIGN_OR_RETURN(disk_, SmallDisk::Mount());
    setenv("TMPDIR", disk_->folder().c_str(), 1);
  }
  if (isolation.networks) {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Create(ranks);
    if (!network.ok()) {
      return Annotate(network.status(), "processes cannot have networks of their own here (root, iproute2, veth)");
    }
    network_ = *std::move(network);
  }
  return absl::OkStatus();
}

absl::Status OwnProcesses::StartPart(std::vector<std::string> command, const std::string& host,
                                     const std::string& log_file, bool (*is_interrupted)()) {
  const std::string disk_log = disk_ ? absl::StrCat(disk_->log_file(), host.empty() ? "" : "." + host) : "";
  if (disk_) {
    // Nobody between the processes and the disk: a pipe would hide from them that it is full.
    const std::vector<std::string> shell = {"/bin/sh", "-c", absl::StrCat("exec \"$0\" \"$@\" 2>>", disk_log)};
    command.insert(command.begin(), shell.begin(), shell.end());
    disk_log_copies_.emplace_back(disk_log, log_file);
  }
  absl::StatusOr<std::unique_ptr<OwnServer>> server =
      OwnServer::StartCommand(command, disk_ ? "" : log_file, is_interrupted);
  if (!server.ok()) {
    return disk_ ? absl::UnavailableError(absl::StrCat(server.status().message(), LastLineOf(disk_log)))
                 : server.status();
  }
  std::map<std::string, std::string> values = ValuesOf((*server)->ready_line());
  parts_.push_back({host, *std::move(server)});
  if (!values.contains("http")) return absl::OkStatus();
  std::vector<std::string> http = absl::StrSplit(values["http"], ',');
  std::vector<std::string> metrics = absl::StrSplit(values["metrics"], ',');
  if (metrics.size() < http.size()) {
    return absl::InternalError(absl::StrCat("cannot read \"", parts_.back().server->ready_line(), "\""));
  }
  metrics.resize(http.size());  // the routers' come first
  std::vector<std::string> grpc = absl::StrSplit(values["grpc"], ',');
  if (!host.empty()) {
    http = {absl::StrCat(host, ":", kHttpPort)};
    grpc = {absl::StrCat(host, grpc.front().substr(grpc.front().rfind(':')))};
  }
  router_grpc_.insert(router_grpc_.end(), grpc.begin(), grpc.end());
  http_.insert(http_.end(), http.begin(), http.end());
  router_metrics_.insert(router_metrics_.end(), metrics.begin(), metrics.end());
  return absl::OkStatus();
}

OwnProcesses::~OwnProcesses() {
  for (Part& part : parts_) part.server.reset();
  for (const auto& [from, to] : disk_log_copies_) {
    std::error_code ignored;
    if (!to.empty()) std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, ignored);
  }
}

std::vector<pid_t> OwnProcesses::ProcessesAt(const std::string& host) const {
  std::vector<pid_t> processes;
  for (const Part& part : parts_) {
    if (!part.host.empty() && part.host != host) continue;
    const std::vector<pid_t> children = ChildrenOf(part.server->pid());
    processes.insert(processes.end(), children.begin(), children.end());
  }
  return processes;
}

}  // namespace winnow::chaos
