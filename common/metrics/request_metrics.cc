#include "common/metrics/request_metrics.h"

namespace winnow {
namespace {

// Those that ApiError makes of statuses.
constexpr std::array<int, 10> kHttpStatuses = {200, 400, 401, 403, 404, 429, 499, 500, 503, 504};

// Three steps a decade or finer where figures of users lie: tokens of a small model on a GPU come within half a
// millisecond, the first one of a prompt of 512k tokens after minutes.
const std::vector<double> kTimeToFirstToken = {.001, .0025, .005, .01, .02, .04, .06, .08, .1,  .25, .5,
                                               .75,  1,     2.5,  5,   7.5, 10,  25,  50,  100, 250};
const std::vector<double> kTimePerOutputToken = {.0001, .0002, .0003, .0005, .00075, .001, .0015, .002, .003,
                                                 .004,  .005,  .0075, .01,   .015,   .02,  .03,   .04,  .05,
                                                 .075,  .1,    .15,   .2,    .3,     .5,   .75,   1,    2.5};
const std::vector<double> kRequestDuration = {.01,   .02,   .04,   .08,   .16,    .32,    .64,    1.28,    2.56, 5.12,
                                              10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36, 1310.72, 3600};
const std::vector<double> kTokens = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

RequestMetrics::RequestMetrics(MetricsRegistry& registry, const std::string& model)
    : rejected(registry.AddCounter("winnow_requests_rejected_total",
                                   "Requests that were refused because the queue was full or no rank could serve.",
                                   {{"model_name", model}})),
      prompt_tokens(
          registry.AddCounter("winnow_prompt_tokens_total", "Tokens of accepted prompts.", {{"model_name", model}})),
      generation_tokens(
          registry.AddCounter("winnow_generation_tokens_total", "Tokens generated.", {{"model_name", model}})),
      time_to_first_token(registry.AddHistogram("winnow_time_to_first_token_seconds",
                                                "From arrival of a request to its first token.", kTimeToFirstToken,
                                                {{"model_name", model}})),
      inter_token_latency(registry.AddHistogram("winnow_inter_token_latency_seconds",
                                                "Between two tokens of one output.", kTimePerOutputToken,
                                                {{"model_name", model}})),
      time_per_output_token(registry.AddHistogram("winnow_time_per_output_token_seconds",
                                                  "Mean time per token after the first, one sample per output.",
                                                  kTimePerOutputToken, {{"model_name", model}})),
      e2e_request_latency(registry.AddHistogram("winnow_e2e_request_latency_seconds",
                                                "From arrival of a request to its end.", kRequestDuration,
                                                {{"model_name", model}})),
      request_prompt_tokens(registry.AddHistogram("winnow_request_prompt_tokens", "Tokens of accepted prompts.",
                                                  kTokens, {{"model_name", model}})),
      request_generation_tokens(registry.AddHistogram(
          "winnow_request_generation_tokens", "Tokens of outputs that ended.", kTokens, {{"model_name", model}})) {
  const std::array<const char*, 4> reasons = {"stop", "length", "abort", "error"};
  for (size_t i = 0; i < reasons.size(); ++i) {
    success_[i] = &registry.AddCounter("winnow_request_success_total", "Outputs that ended, by reason.",
                                       {{"finished_reason", reasons[i]}, {"model_name", model}});
  }
  const auto add = [&](const char* api, const std::string& code) {
    return &registry.AddCounter(
        "winnow_requests_total",
        "Requests to generate, by the HTTP status or gRPC code that answered them; of a stream that broke off "
        "that of its error, 499 when the client went away.",
        {{"api", api}, {"code", code}, {"model_name", model}});
  };
  for (const int status : kHttpStatuses) http_requests_[status] = add("http", std::to_string(status));
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const auto status = static_cast<absl::StatusCode>(code);
    grpc_requests_[status] = add("grpc", absl::StatusCodeToString(status));
  }
}

void RequestMetrics::OnAccepted(uint32_t tokens) {
  prompt_tokens.Increment(tokens);
  request_prompt_tokens.Observe(tokens);
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
  metrics_->request_generation_tokens.Observe(static_cast<double>(tokens_));
  metrics_->e2e_request_latency.Observe(Seconds(now - arrival_));
  if (tokens_ > 1) {
    metrics_->time_per_output_token.Observe(Seconds(last_token_ - first_token_) / static_cast<double>(tokens_ - 1));
  }
}

}  // namespace winnow
