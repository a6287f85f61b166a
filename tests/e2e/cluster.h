#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/metrics/metrics_text.h"
#include "tests/e2e/json.h"
#include "tests/e2e/process.h"
#include "tools/load/http_client.h"

namespace winnow::e2e {

// Of the environment:
//   WINNOW_SOURCE_DIR, WINNOW_BINARY   instead of the tree and the program that were built
//   WINNOW_E2E_FLAGS                   flags for every cluster, for example --device=cuda

// Paths of the tree.
std::string SourcePath(const std::string& relative);
inline std::string DemoModel() {
  return SourcePath("deploy/models/demo");
}
// The program under test.
std::string WinnowBinary();

using Metrics = MetricsText;  // of a process

// A running `winnow up` on free ports.
class Cluster {
 public:
  struct Options {
    std::string model = DemoModel();
    std::vector<std::string> flags = {};
    Process::Environment environment = {};
    std::chrono::milliseconds start_limit{60'000};
  };

  // Returns when it has said that it is ready; an error carries its log.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const Options& options);

  const std::string& http_address() const { return http_; }
  const std::string& grpc_address() const { return grpc_; }
  HttpClient http() const { return HttpClient(http_); }
  Process& process() { return *process_; }

  // Processes of a role ("router", "inference-rank", "cache-rank") in the order of their start: inference-0 first,
  // until one has been restarted.
  std::vector<pid_t> Pids(std::string_view role) const;
  // All of them, `winnow up` itself too.
  std::vector<pid_t> AllPids() const;

  // Of "router-0", "inference-0", "decode-0", "cache-1".
  Metrics MetricsOf(const std::string& rank) const;
  const std::vector<std::string>& ranks() const { return ranks_; }

  // SIGTERM; OK when it ends with exit code 0 and none of its children is left.
  absl::Status Stop();

 private:
  std::unique_ptr<Process> process_;
  std::string http_, grpc_;
  std::vector<std::string> ranks_;                        // in the order of the ready line
  std::map<std::string, std::string> metrics_addresses_;  // by rank
};

// Starts one of the demo model for a test that cannot do without: null after a failure that carries the log.
std::unique_ptr<Cluster> StartOrFail(std::vector<std::string> flags, Process::Environment environment = {});

}  // namespace winnow::e2e
