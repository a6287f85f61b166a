#include "common/metrics/request_metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(RequestMetrics, EverySeriesExistsBeforeTheFirstRequest) {
  MetricsRegistry registry;
  const RequestMetrics metrics(registry, "m");
  const std::string text = registry.RenderText();
  for (const char* line :
       {"winnow_requests_total{api=\"http\",code=\"200\",model_name=\"m\"} 0\n",
        "winnow_requests_total{api=\"http\",code=\"429\",model_name=\"m\"} 0\n",
        "winnow_requests_total{api=\"grpc\",code=\"INVALID_ARGUMENT\",model_name=\"m\"} 0\n",
        "winnow_prompt_tokens_total{model_name=\"m\"} 0\n", "winnow_generation_tokens_total{model_name=\"m\"} 0\n",
        "winnow_request_success_total{finished_reason=\"stop\",model_name=\"m\"} 0\n",
        "winnow_request_success_total{finished_reason=\"error\",model_name=\"m\"} 0\n",
        "winnow_time_to_first_token_seconds_count{model_name=\"m\"} 0\n",
        "winnow_inter_token_latency_seconds_count{model_name=\"m\"} 0\n",
        "winnow_e2e_request_latency_seconds_count{model_name=\"m\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(RequestMetrics, CountsRequestsByApiAndCode) {
  MetricsRegistry registry;
  RequestMetrics metrics(registry, "m");
  for (int status : {200, 200, 404, 499, 418}) metrics.OnHttpAnswer(status);
  metrics.OnGrpcAnswer(absl::StatusCode::kOk);
  metrics.OnGrpcAnswer(absl::StatusCode::kResourceExhausted);
  const std::string text = registry.RenderText();
  for (const char* line :
       {"{api=\"http\",code=\"200\",model_name=\"m\"} 2\n", "{api=\"http\",code=\"404\",model_name=\"m\"} 1\n",
        "{api=\"http\",code=\"499\",model_name=\"m\"} 1\n", "{api=\"http\",code=\"500\",model_name=\"m\"} 1\n",
        "{api=\"http\",code=\"503\",model_name=\"m\"} 0\n", "{api=\"grpc\",code=\"OK\",model_name=\"m\"} 1\n",
        "{api=\"grpc\",code=\"RESOURCE_EXHAUSTED\",model_name=\"m\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(std::string("winnow_requests_total") + line));
  }
}

TEST(RequestTimer, SplitsARequestIntoFirstTokenAndTheRest) {
  MetricsRegistry registry;
  RequestMetrics metrics(registry, "m");
  const RequestTimer::Clock::time_point start{std::chrono::hours(1)};
  RequestTimer timer(&metrics, start);
  timer.OnTokens(1, start + milliseconds(250));
  timer.OnTokens(0, start + milliseconds(260));  // text without a token is no token
  timer.OnTokens(2, start + milliseconds(450));
  timer.OnEnd(FinishedReason::kLength, start + milliseconds(500));
  const std::string text = registry.RenderText();
  // 0.25 s to the first token; two gaps of 0.1 s; (0.45 - 0.25) / 2 = 0.1 s per output token; 0.5 s in all.
  EXPECT_THAT(text, HasSubstr("winnow_time_to_first_token_seconds_sum{model_name=\"m\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("winnow_inter_token_latency_seconds_count{model_name=\"m\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("winnow_inter_token_latency_seconds_sum{model_name=\"m\"} 0.2\n"));
  EXPECT_THAT(text, HasSubstr("winnow_time_per_output_token_seconds_sum{model_name=\"m\"} 0.1\n"));
  EXPECT_THAT(text, HasSubstr("winnow_e2e_request_latency_seconds_sum{model_name=\"m\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("winnow_generation_tokens_total{model_name=\"m\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("winnow_request_generation_tokens_sum{model_name=\"m\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("winnow_request_success_total{finished_reason=\"length\",model_name=\"m\"} 1\n"));
}

}  // namespace
}  // namespace winnow
