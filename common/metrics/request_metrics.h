#pragma once
#include <array>
#include <chrono>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/metrics/metrics_registry.h"

namespace winnow {

enum class FinishedReason : uint8_t { kStop, kLength, kAbort, kError };

// What a router counts of its requests. Every series exists at 0 from the start. Any thread.
class RequestMetrics {
 public:
  // `model` is the label model_name of every series.
  RequestMetrics(MetricsRegistry& registry, const std::string& model);

  void OnAccepted(uint32_t prompt_tokens);
  void OnFinished(FinishedReason reason) { success_[static_cast<size_t>(reason)]->Increment(); }
  // A request has been answered, refused or given up: HTTP status or gRPC code. Statuses that the API does not have
  // count as 500.
  void OnHttpAnswer(int status);
  void OnGrpcAnswer(absl::StatusCode code);

  prometheus::Counter& rejected;  // refused before the first token: full queue, no rank
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& generation_tokens;
  prometheus::Histogram& time_to_first_token;        // seconds from arrival
  prometheus::Histogram& inter_token_latency;        // seconds between two tokens of one output
  prometheus::Histogram& time_per_output_token;      // seconds per token after the first, one sample per request
  prometheus::Histogram& e2e_request_latency;        // seconds from arrival to the end
  prometheus::Histogram& request_prompt_tokens;      // of accepted requests
  prometheus::Histogram& request_generation_tokens;  // of outputs that ended

 private:
  std::array<prometheus::Counter*, 4> success_;
  std::map<int, prometheus::Counter*> http_requests_;               // constant after construction
  std::map<absl::StatusCode, prometheus::Counter*> grpc_requests_;  // likewise
};

// Follows one output and feeds the four histograms and the token counter. One thread at a time.
class RequestTimer {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RequestTimer(RequestMetrics* metrics, Clock::time_point arrival = Clock::now())
      : metrics_(metrics), arrival_(arrival) {}

  void OnTokens(size_t count, Clock::time_point now = Clock::now());
  void OnEnd(FinishedReason reason, Clock::time_point now = Clock::now());

 private:
  RequestMetrics* const metrics_;
  const Clock::time_point arrival_;
  Clock::time_point first_token_{};
  Clock::time_point last_token_{};
  size_t tokens_ = 0;
};

}  // namespace winnow
