#include "common/metrics/request_metrics.h"

namespace winnow {
namespace {

// Those that ApiError makes of statuses.
constexpr std::array<int, 10> kHttpStatuses = {200, 400, 401, 403, 404, 429, 499, 500, 503, 504};

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

RequestMetrics::RequestMetrics(MetricsRegistry& registry)
    : rejected(registry.AddCounter("winnow_requests_rejected_total",
                                   "Requests that were refused because the queue was full or no rank could serve.")),
      prompt_tokens(registry.AddCounter("winnow_prompt_tokens_total", "Tokens of accepted prompts.")),
      generation_tokens(registry.AddCounter("winnow_generation_tokens_total", "Tokens generated.")),
      time_to_first_token(registry.AddHistogram("winnow_time_to_first_token_seconds",
                                                "From arrival of a request to its first token.",
                                                TimeToFirstTokenBuckets())),
      inter_token_latency(registry.AddHistogram("winnow_inter_token_latency_seconds",
                                                "Between two tokens of one output.", TimePerOutputTokenBuckets())),
      time_per_output_token(registry.AddHistogram("winnow_time_per_output_token_seconds",
                                                  "Mean time per token after the first, one sample per output.",
                                                  TimePerOutputTokenBuckets())),
      e2e_request_latency(registry.AddHistogram("winnow_e2e_request_latency_seconds",
                                                "From arrival of a request to its end.", RequestDurationBuckets())) {
  const std::array<const char*, 4> reasons = {"stop", "length", "abort", "error"};
  for (size_t i = 0; i < reasons.size(); ++i) {
    success_[i] = &registry.AddCounter("winnow_request_success_total", "Outputs that ended, by reason.",
                                       {{"finished_reason", reasons[i]}});
  }
  const auto add = [&](const char* api, const std::string& code) {
    return &registry.AddCounter("winnow_requests_total", "Requests to generate, by the code that answered them.",
                                {{"api", api}, {"code", code}});
  };
  for (const int status : kHttpStatuses) http_requests_[status] = add("http", std::to_string(status));
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const auto status = static_cast<absl::StatusCode>(code);
    grpc_requests_[status] = add("grpc", absl::StatusCodeToString(status));
  }
}

void RequestMetrics::OnHttpAnswer(int status) {
  const auto it = http_requests_.find(status);
  (it == http_requests_.end() ? http_requests_.at(500) : it->second)->Increment();
}

void RequestMetrics::OnGrpcAnswer(absl::StatusCode code) {
  const auto it = grpc_requests_.find(code);
  (it == grpc_requests_.end() ? grpc_requests_.at(absl::StatusCode::kUnknown) : it->second)->Increment();
}

void RequestTimer::OnTokens(size_t count, Clock::time_point now) {
  if (count == 0) return;
  metrics_->generation_tokens.Increment(static_cast<double>(count));
  if (tokens_ == 0) {
    metrics_->time_to_first_token.Observe(Seconds(now - arrival_));
    first_token_ = now;
  } else {
    // Tokens that come together waited together: each gets its share.
    const double each = Seconds(now - last_token_) / static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) metrics_->inter_token_latency.Observe(each);
  }
  tokens_ += count;
  last_token_ = now;
}

void RequestTimer::OnEnd(FinishedReason reason, Clock::time_point now) {
  metrics_->OnFinished(reason);
  metrics_->e2e_request_latency.Observe(Seconds(now - arrival_));
  if (tokens_ > 1) {
    metrics_->time_per_output_token.Observe(Seconds(last_token_ - first_token_) / static_cast<double>(tokens_ - 1));
  }
}

}  // namespace winnow
