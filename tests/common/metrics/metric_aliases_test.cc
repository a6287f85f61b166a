#include "common/metrics/metric_aliases.h"

#include "common/metrics/metrics_registry.h"
#include "common/metrics/request_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricAliases, AreCopiesUnderTheNamesOfVllm) {
  MetricsRegistry registry(MetricLabels{{"role", "router"}});
  RequestMetrics requests(registry, "qwen");
  requests.OnAccepted(300);
  requests.OnFinished(FinishedReason::kLength);
  registry.AddGauge("winnow_num_requests_waiting", "Waiting.").Set(3);
  EXPECT_THAT(registry.RenderText(), Not(HasSubstr("vllm:")));
  registry.SetVllmAliases("qwen");
  const std::string text = registry.RenderText();
  for (const char* line :
       {"winnow_num_requests_waiting{role=\"router\"} 3\n", "# TYPE vllm:num_requests_waiting gauge\n",
        "vllm:num_requests_waiting{role=\"router\",model_name=\"qwen\"} 3\n",
        "vllm:prompt_tokens_total{role=\"router\",model_name=\"qwen\"} 300\n",
        "vllm:request_success_total{role=\"router\",finished_reason=\"length\",model_name=\"qwen\"} 1\n",
        "vllm:request_prompt_tokens_bucket{role=\"router\",model_name=\"qwen\",le=\"500\"} 1\n",
        "vllm:request_prompt_tokens_bucket{role=\"router\",model_name=\"qwen\",le=\"200\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace winnow
