#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cmd/chaos/sandbox/network.h"
#include "cmd/chaos/sandbox/small_disk.h"
#include "cmd/up/own_server.h"

namespace winnow::chaos {

// What the processes of a cluster shall have of their own, so that it can be taken from them.
struct Isolation {
  bool networks = false;    // a host for each process, with an address of its own
  bool small_disk = false;  // for logs, temporary files and shared memory
};

// A cluster that is started here and ends with this object: one `winnow up`, or one for each process as the node of
// a manifest, on a host of its own.
class OwnProcesses {
 public:
  // `options`: of `winnow up`. To be called from the one thread of the process, which is a client of the cluster from
  // then on, as are the threads that it starts.
  static absl::StatusOr<std::unique_ptr<OwnProcesses>> Start(const std::vector<std::string>& options,
                                                             const Isolation& isolation, const std::string& log_file,
                                                             bool (*is_interrupted)());
  ~OwnProcesses();

  // Of the routers: HTTP, gRPC, and metrics.
  const std::vector<std::string>& http() const { return http_; }
  const std::vector<std::string>& router_grpc() const { return router_grpc_; }
  const std::vector<std::string>& router_metrics() const { return router_metrics_; }
  // The processes that run on the host with that address.
  std::vector<pid_t> ProcessesAt(const std::string& host) const;
  const Network* network() const { return network_.get(); }  // null: all are on one host
  const SmallDisk* disk() const { return disk_.get(); }      // null: they have that of the machine

 private:
  struct Part {
    std::string host;  // address; empty: that of all
    std::unique_ptr<OwnServer> server;
  };
  OwnProcesses() = default;
  absl::Status Isolate(const Isolation& isolation, const std::vector<std::string>& ranks);
  absl::Status StartPart(std::vector<std::string> command, const std::string& host, const std::string& log_file,
                         bool (*is_interrupted)());

  std::unique_ptr<SmallDisk> disk_;
  std::unique_ptr<Network> network_;
  std::vector<Part> parts_;  // the routers' first
  std::vector<std::string> http_, router_grpc_, router_metrics_;
  // Logs on the small disk, and where they go in the end; empty: nowhere.
  std::vector<std::pair<std::string, std::string>> disk_log_copies_;
};

}  // namespace winnow::chaos
