#include "tests/e2e/router_pair.h"

#include "tests/support/free_port.h"

namespace winnow::e2e {
namespace {

std::string FreeAddress() {
  return absl::StrCat("127.0.0.1:", FreePort());
}

constexpr const char* kSelection = "--budget=256";

}  // namespace

absl::StatusOr<std::unique_ptr<RouterPair>> RouterPair::Start(const std::vector<std::string>& rank_flags,
                                                              const std::vector<std::string>& router_flags) {
  auto pair = std::make_unique<RouterPair>();
  pair->rank_flags_ = rank_flags;
  pair->router_flags_ = router_flags;
  for (int i = 0; i < kRouters; ++i) {
    pair->http_.push_back(FreeAddress());
    pair->grpc_.push_back(FreeAddress());
    pair->router_metrics_.push_back(FreeAddress());
  }
  for (int i = 0; i < kRouters; ++i) {
    pair->routers_.push_back(std::make_unique<Process>(pair->RouterArguments(i), Process::Environment{}));
  }
  for (int i = 0; i < kInferenceRanks; ++i) {
    pair->inference_metrics_.push_back(FreeAddress());
    pair->inference_.push_back(std::make_unique<Process>(pair->InferenceArguments(i), Process::Environment{}));
  }
  pair->cache_metrics_ = FreeAddress();
  pair->cache_ = std::make_unique<Process>(
      std::vector<std::string>{WinnowBinary(), "cache-rank", "--rank=cache-0", pair->RouterFlag(), "--grpc=127.0.0.1:0",
                               "--metrics=" + pair->cache_metrics_, "--threads=1", "--memory=512MiB"},
      Process::Environment{});
  if (!pair->AwaitReady()) return absl::UnavailableError("the routers did not become ready\n" + pair->Logs());
  return pair;
}

bool RouterPair::AwaitReady() const {
  return WaitUntil(std::chrono::milliseconds(60'000), [this] {
    for (int i = 0; i < kRouters; ++i) {
      if (RouterMetrics(i).Value("winnow_router_ranks", {{"kind", "inference"}}) != kInferenceRanks) return false;
      if (!IsReady(i)) return false;
    }
    return true;
  });
}

std::string RouterPair::RouterFlag() const {
  return absl::StrCat("--router=", grpc_[0], ",", grpc_[1]);
}

std::vector<std::string> RouterPair::RouterArguments(int router) const {
  std::vector<std::string> arguments = {WinnowBinary(),
                                        "router",
                                        "--model=" + DemoModel(),
                                        absl::StrCat("--rank=router-", router),
                                        "--http=" + http_[router],
                                        "--grpc=" + grpc_[router],
                                        "--metrics=" + router_metrics_[router],
                                        kSelection};
  arguments.insert(arguments.end(), router_flags_.begin(), router_flags_.end());
  return arguments;
}

std::vector<std::string> RouterPair::InferenceArguments(int rank) const {
  std::vector<std::string> arguments = {WinnowBinary(),
                                        "inference-rank",
                                        "--model=" + DemoModel(),
                                        absl::StrCat("--rank=inference-", rank),
                                        RouterFlag(),
                                        "--grpc=127.0.0.1:0",
                                        "--metrics=" + inference_metrics_[rank],
                                        "--threads=1",
                                        "--max-context=4096",
                                        kSelection};
  arguments.insert(arguments.end(), rank_flags_.begin(), rank_flags_.end());
  return arguments;
}

void RouterPair::RestartRouter(int router) {
  routers_[router]->Wait(std::chrono::milliseconds(10'000));
  routers_[router] = std::make_unique<Process>(RouterArguments(router), Process::Environment{});
}

void RouterPair::RestartInferenceRank(int rank) {
  inference_[rank]->Wait(std::chrono::milliseconds(10'000));
  inference_[rank] = std::make_unique<Process>(InferenceArguments(rank), Process::Environment{});
}

Metrics RouterPair::MetricsAt(const std::string& address) {
  return Metrics(HttpClient(address, std::chrono::milliseconds(10'000)).Get("/metrics").body);
}

double RouterPair::SequencesLeft() const {
  double left = 0;
  for (int i = 0; i < kInferenceRanks; ++i) {
    const Metrics metrics = InferenceMetrics(i);
    left += std::max(0.0, metrics.Value("winnow_num_requests_running"));
    left += std::max(0.0, metrics.Value("winnow_num_requests_waiting"));
  }
  const Metrics cache = CacheMetrics();
  return left + cache.Value("winnow_sequences", {{"state", "active"}}) +
         cache.Value("winnow_sequences", {{"state", "detached"}});
}

double RouterPair::Held() const {
  double held = 0;
  for (int i = 0; i < kInferenceRanks; ++i) held += InferenceMetrics(i).Value("winnow_held_requests");
  return held;
}

std::string RouterPair::Logs() const {
  std::string logs;
  for (const auto* processes : {&routers_, &inference_}) {
    for (const auto& process : *processes) absl::StrAppend(&logs, process->Log(), "\n");
  }
  return logs + cache_->Log();
}

}  // namespace winnow::e2e
