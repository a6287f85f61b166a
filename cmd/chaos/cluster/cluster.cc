#include "cmd/chaos/cluster/cluster.h"

#include <cmath>
#include <set>
#include <thread>

#include "absl/strings/str_join.h"
#include "cmd/up/http_probe.h"
#include "common/base/json.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFindLimit{3'000};      // for processes that run
constexpr milliseconds kOwnFindLimit{60'000};  // for those that were started just now
// Between what a process says of its start and what the kernel says, which counts in other units.
constexpr double kStartToleranceSeconds = 3;

bool IsThatStart(pid_t pid, const ProcessScrape& scrape) {
  const std::vector<std::string> arguments = CommandLineOf(pid);
  if (arguments.size() < 2 || arguments[1] != scrape.role) return false;
  const absl::StatusOr<ProcessFigures> figures = ReadProcess(pid);
  const double said_s = scrape.metrics->Value("process_start_time_seconds");
  return figures.ok() && std::abs(UnixTimeOf(figures->start_s) - said_s) < kStartToleranceSeconds;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const std::vector<std::string>& options,
                                                        const Isolation& isolation, const std::string& log_file,
                                                        bool (*is_interrupted)()) {
  std::unique_ptr<Cluster> cluster(new Cluster());
  WINNOW_ASSIGN_OR_RETURN(cluster->own_, OwnProcesses::Start(options, isolation, log_file, is_interrupted));
  cluster->http_ = cluster->own_->http();
  cluster->router_metrics_ = cluster->own_->router_metrics();
  WINNOW_RETURN_IF_ERROR(cluster->Remember());
  return cluster;
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Attach(std::vector<std::string> http,
                                                         std::vector<std::string> router_metrics) {
  std::unique_ptr<Cluster> cluster(new Cluster());
  cluster->http_ = std::move(http);
  cluster->router_metrics_ = std::move(router_metrics);
  WINNOW_RETURN_IF_ERROR(cluster->Remember());
  return cluster;
}

absl::Status Cluster::Remember() {
  const auto limit = Clock::now() + (is_own() ? kOwnFindLimit : kFindLimit);
  std::set<std::string> absent;
  do {
    first_members_ = Find();
    absent.clear();
    for (const ProcessScrape& process : Scrape()) {
      if (!first_members_.contains(process.rank)) absent.insert(process.rank + " at " + process.address);
    }
    if (!first_members_.empty() && absent.empty()) return absl::OkStatus();
    std::this_thread::sleep_for(milliseconds(100));
  } while (Clock::now() < limit);
  if (first_members_.empty()) {
    return absl::UnavailableError(absl::StrCat("no process of a cluster was found on this host by ",
                                               absl::StrJoin(router_metrics_, ", "),
                                               ": are these the metrics addresses of its routers?"));
  }
  return absl::UnavailableError(absl::StrCat(
      "these processes of the cluster are not on this host: ", absl::StrJoin(absent, ", "), "; all must be"));
}

std::vector<ProcessScrape> Cluster::Scrape(milliseconds patience) const {
  std::map<std::string, ProcessScrape> by_rank;
  for (const std::string& router : router_metrics_) {
    absl::StatusOr<ClusterScrape> scrape = ScrapeCluster(router, patience);
    if (!scrape.ok()) continue;
    for (ProcessScrape& process : scrape->processes) {
      if (process.metrics) by_rank.insert_or_assign(process.rank, std::move(process));
    }
  }
  std::vector<ProcessScrape> processes;
  for (auto& [rank, process] : by_rank) processes.push_back(std::move(process));
  return processes;
}

Members Cluster::Find(milliseconds patience) const {
  Members members;
  for (const ProcessScrape& scrape : Scrape(patience)) {
    const absl::StatusOr<HostPort> address = ParseHostPort(scrape.address);
    if (!address.ok()) continue;
    const std::optional<pid_t> pid =
        own_ ? ListenerAmong(own_->ProcessesAt(address->host), *address) : ListenerOfThisHost(*address);
    if (!pid || (!own_ && !IsThatStart(*pid, scrape))) continue;
    absl::StatusOr<Process> process = Process::Open(*pid);
    if (!process.ok()) continue;
    members.insert_or_assign(scrape.rank, Member{scrape.role, scrape.rank, *address, *std::move(process)});
  }
  return members;
}

std::string Cluster::Missing() const {
  const Members members = Find();
  for (const auto& [rank, member] : first_members_) {
    if (!members.contains(rank)) return rank + " has not registered";
  }
  for (const std::string& router : router_metrics_) {
    const absl::StatusOr<HttpAnswer> ready = HttpGet(router, "/ready", milliseconds(1000));
    if (!ready.ok() || ready->status != 200) return absl::StrCat("the router at ", router, " is not ready");
    const absl::StatusOr<HttpAnswer> ranks = HttpGet(router, "/ranks", milliseconds(1000));
    const auto list = ranks.ok() ? ParseJson(ranks->body) : nlohmann::json();
    if (!list.is_object()) return absl::StrCat("the router at ", router, " does not list its ranks");
    size_t serving = 0;
    for (const auto& rank : list.value("ranks", nlohmann::json::array())) {
      if (rank.contains("does_not_reach")) {
        return absl::StrCat(rank.value("rank", "?"), " does not reach ", rank["does_not_reach"].dump());
      }
      serving += rank.value("state", "") == "serving";
    }
    size_t ranks_of_beginning = 0;
    for (const auto& [rank, member] : first_members_) ranks_of_beginning += member.role != "router";
    if (serving < ranks_of_beginning) {
      return absl::StrCat("of ", ranks_of_beginning, " ranks ", serving, " serve, says the router at ", router);
    }
  }
  return "";
}

std::string Cluster::AwaitWhole(milliseconds limit, const std::stop_token& stop) const {
  const auto until = Clock::now() + limit;
  std::string missing;
  while (!(missing = Missing()).empty() && Clock::now() < until && SleepFor(milliseconds(50), stop)) {
  }
  return missing;
}

}  // namespace winnow::chaos
