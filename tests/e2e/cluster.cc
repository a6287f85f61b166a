#include "tests/e2e/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <thread>

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

// Value of the last "--name=value" among the flags.
int FlagOr(const std::vector<std::string>& flags, const std::string& name, int otherwise) {
  const std::string prefix = "--" + name + "=";
  for (auto flag = flags.rbegin(); flag != flags.rend(); ++flag) {
    if (flag->starts_with(prefix)) return std::stoi(flag->substr(prefix.size()));
  }
  return otherwise;
}

}  // namespace

namespace {

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

}  // namespace

std::string SourcePath(const std::string& relative) {
  return FromEnvironment("WINNOW_SOURCE_DIR", WINNOW_SOURCE_DIR) + "/" + relative;
}

std::string WinnowBinary() {
  return FromEnvironment("WINNOW_BINARY", WINNOW_BINARY);
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const Options& options) {
  std::vector<std::string> arguments = {
      WinnowBinary(),         "up", "--model=" + options.model, "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
      "--metrics=127.0.0.1:0"};
  arguments.insert(arguments.end(), options.flags.begin(), options.flags.end());
  std::istringstream more(FromEnvironment("WINNOW_E2E_FLAGS", ""));
  for (std::string flag; more >> flag;) arguments.push_back(flag);
  auto cluster = std::make_unique<Cluster>();
  cluster->process_ = std::make_unique<Process>(arguments, options.environment);
  const std::optional<std::string> line = cluster->process_->ReadLine(options.start_limit);
  static const std::regex ready(R"(ready http=(\S+) grpc=(\S+) metrics=(\S+))");
  std::smatch match;
  if (!line || !std::regex_match(*line, match, ready)) {
    return absl::UnavailableError(absl::StrCat("the cluster did not become ready; it said \"", line.value_or(""),
                                               "\"\n", cluster->process_->Log()));
  }
  cluster->http_ = match[1];
  cluster->grpc_ = match[2];

  std::vector<std::string>& ranks = cluster->ranks_;
  ranks = {"router-0"};
  const int prefill_ranks = FlagOr(options.flags, "prefill-ranks", 0);
  for (int i = 0; i < prefill_ranks; ++i) ranks.push_back(absl::StrCat("prefill-", i));
  for (int i = 0; i < FlagOr(options.flags, "decode-ranks", 0); ++i) ranks.push_back(absl::StrCat("decode-", i));
  for (int i = 0; prefill_ranks == 0 && i < FlagOr(options.flags, "inference-ranks", 1); ++i) {
    ranks.push_back(absl::StrCat("inference-", i));
  }
  const bool inproc =
      std::find(options.flags.begin(), options.flags.end(), "--transport=inproc") != options.flags.end();
  for (int i = 0; !inproc && i < FlagOr(options.flags, "cache-ranks", 1); ++i) {
    ranks.push_back(absl::StrCat("cache-", i));
  }
  std::istringstream addresses(match[3]);
  std::string address;
  for (size_t i = 0; std::getline(addresses, address, ','); ++i) {
    if (i < ranks.size()) cluster->metrics_addresses_[ranks[i]] = address;
  }
  if (cluster->metrics_addresses_.size() != ranks.size()) {
    return absl::InternalError(absl::StrCat("the ready line names too few metrics addresses: ", *line));
  }
  return cluster;
}

std::vector<pid_t> Cluster::Pids(std::string_view role) const {
  std::vector<pid_t> pids = ChildrenOf(process_->pid());
  std::erase_if(pids, [&](pid_t pid) { return SubcommandOf(pid) != role; });
  return pids;
}

std::vector<pid_t> Cluster::AllPids() const {
  std::vector<pid_t> pids = ChildrenOf(process_->pid());
  pids.insert(pids.begin(), process_->pid());
  return pids;
}

Metrics Cluster::MetricsOf(const std::string& rank) const {
  return Metrics(HttpClient(metrics_addresses_.at(rank), milliseconds(10'000)).Get("/metrics").body);
}

absl::Status Cluster::Stop() {
  const std::vector<pid_t> children = ChildrenOf(process_->pid());
  process_->Signal(SIGTERM);
  const std::optional<int> code = process_->Wait(milliseconds(15'000));
  if (!code) return absl::DeadlineExceededError("winnow up does not end after SIGTERM\n" + process_->Log());
  if (*code != 0) return absl::InternalError(absl::StrCat("winnow up ended with ", *code, "\n", process_->Log()));
  for (const pid_t child : children) {
    if (IsAlive(child)) return absl::InternalError(absl::StrCat("child ", child, " has outlived winnow up"));
  }
  return absl::OkStatus();
}

std::unique_ptr<Cluster> StartOrFail(std::vector<std::string> flags, Process::Environment environment) {
  Cluster::Options options;
  options.flags = std::move(flags);
  options.environment = std::move(environment);
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  if (!cluster.ok()) {
    ADD_FAILURE() << cluster.status().message();
    return nullptr;
  }
  return *std::move(cluster);
}

}  // namespace winnow::e2e
