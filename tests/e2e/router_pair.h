#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"

namespace winnow::e2e {

// Two routers over the same ranks, each process started by itself: two inference ranks and a cache rank that know both
// routers.
class RouterPair {
 public:
  static constexpr int kRouters = 2, kInferenceRanks = 2;

  // Returns when both routers are ready. `rank_flags`: of inference ranks.
  static absl::StatusOr<std::unique_ptr<RouterPair>> Start(const std::vector<std::string>& rank_flags = {},
                                                           const std::vector<std::string>& router_flags = {});

  HttpClient http(int router) const { return HttpClient(http_[router]); }
  const std::string& grpc_address(int router) const { return grpc_[router]; }
  const std::string& metrics_address(int router) const { return router_metrics_[router]; }
  Metrics RouterMetrics(int router) const { return MetricsAt(router_metrics_[router]); }
  Metrics InferenceMetrics(int rank) const { return MetricsAt(inference_metrics_[rank]); }
  Metrics CacheMetrics() const { return MetricsAt(cache_metrics_); }

  // kill -9; and the same process once more.
  void KillRouter(int router) { routers_[router]->Signal(9); }
  void RestartRouter(int router);
  // SIGTERM; what Restart... waits for.
  void StopRouter(int router) { routers_[router]->Signal(15); }
  void StopInferenceRank(int rank) { inference_[rank]->Signal(15); }
  void RestartInferenceRank(int rank);
  // Of a process that has been told to end: as Process::Wait.
  std::optional<int> RouterExit(int router) { return routers_[router]->Wait(std::chrono::milliseconds(30'000)); }
  // Every router has all ranks, and would serve.
  bool AwaitReady() const;
  bool IsReady(int router) const { return http(router).Get("/ready").status == 200; }
  void KillInferenceRank(int rank) { inference_[rank]->Signal(9); }
  // Sequences on all ranks, and requests that inference ranks hold for nobody.
  double SequencesLeft() const;
  double Held() const;
  std::string Logs() const;

 private:
  static Metrics MetricsAt(const std::string& address);
  std::string RouterFlag() const;
  std::vector<std::string> RouterArguments(int router) const;
  std::vector<std::string> InferenceArguments(int rank) const;

  std::vector<std::string> rank_flags_, router_flags_;
  std::vector<std::string> http_, grpc_, router_metrics_, inference_metrics_;
  std::string cache_metrics_;
  std::vector<std::unique_ptr<Process>> routers_, inference_;
  std::unique_ptr<Process> cache_;
};

}  // namespace winnow::e2e
