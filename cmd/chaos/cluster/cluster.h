#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "cmd/chaos/cluster/own_processes.h"
#include "cmd/chaos/cluster/process.h"
#include "cmd/chaos/cluster/wait.h"
#include "cmd/status/cluster_status.h"
#include "common/base/status.h"

namespace winnow::chaos {

// A process of the cluster on this host.
struct Member {
  std::string role, rank;  // "inference-rank", "inference-0"
  HostPort metrics;
  Process process;

  std::string Name() const { return absl::StrCat(rank, " (pid ", process.pid(), ")"); }
};

// Processes by rank: each rank of a cluster has a name of its own.
using Members = std::map<std::string, Member>;

// The cluster that is tortured: one that is started here and ends with this object, or one that runs on this host.
// Only processes are signalled that a router of the cluster names, that listen at the metrics address that it names, on
// this host, and that are children of the `winnow up` that was started here; where it was not, whose command line has
// their role and which began when their metrics say.
class Cluster {
 public:
  // `options`: of `winnow up`. To be called from the one thread of the process.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const std::vector<std::string>& options,
                                                        const Isolation& isolation, const std::string& log_file,
                                                        bool (*is_interrupted)());
  // Addresses of its routers: HTTP, and metrics.
  static absl::StatusOr<std::unique_ptr<Cluster>> Attach(std::vector<std::string> http,
                                                         std::vector<std::string> router_metrics);

  const std::vector<std::string>& http() const { return http_; }
  // Where its routers take orders; empty where it was not started here.
  std::vector<std::string> router_grpc() const { return own_ ? own_->router_grpc() : std::vector<std::string>(); }
  bool is_own() const { return own_ != nullptr; }
  // What its processes have of their own; null: they share it with the machine.
  const Network* network() const { return own_ ? own_->network() : nullptr; }
  const SmallDisk* disk() const { return own_ ? own_->disk() : nullptr; }
  // Who there was at the beginning.
  const Members& first_members() const { return first_members_; }

  // Who there is now, each by the latest start that has registered; those that do not answer now are left out.
  Members Find(std::chrono::milliseconds patience = std::chrono::milliseconds(1000)) const;
  // What all say of themselves, each once; without those that do not answer.
  std::vector<ProcessScrape> Scrape(std::chrono::milliseconds patience = std::chrono::milliseconds(1000)) const;
  // Empty when everybody of the beginning is there, every router is ready and every rank reaches the others; or what is
  // missing.
  std::string Missing() const;
  // Until nothing is missing; otherwise what it is.
  std::string AwaitWhole(std::chrono::milliseconds limit, const std::stop_token& stop) const;

 private:
  Cluster() = default;
  absl::Status Remember();

  std::unique_ptr<OwnProcesses> own_;
  std::vector<std::string> http_, router_metrics_;
  Members first_members_;
};

}  // namespace winnow::chaos
