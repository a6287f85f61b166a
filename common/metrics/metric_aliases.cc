#include "common/metrics/metric_aliases.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace winnow {
namespace {

struct Alias {
  std::string_view ours;
  std::string_view vllm;  // docs.vllm.ai, "Production metrics"
};
constexpr Alias kAliases[] = {
    {"winnow_num_requests_running", "vllm:num_requests_running"},
    {"winnow_num_requests_waiting", "vllm:num_requests_waiting"},
    {"winnow_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"},
    {"winnow_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"winnow_generation_tokens_total", "vllm:generation_tokens_total"},
    // Both count tokens, of all prompts and of those found.
    {"winnow_prompt_tokens_total", "vllm:prefix_cache_queries_total"},
    {"winnow_router_cached_prompt_tokens_total", "vllm:prefix_cache_hits_total"},
    {"winnow_request_success_total", "vllm:request_success_total"},
    {"winnow_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"winnow_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"winnow_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"},
    {"winnow_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    {"winnow_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"winnow_request_generation_tokens", "vllm:request_generation_tokens"},
};

}  // namespace

void AppendVllmAliases(std::vector<prometheus::MetricFamily>& families, const std::string& model) {
  std::vector<prometheus::MetricFamily> aliases;
  for (const Alias& alias : kAliases) {
    const auto ours =
        std::find_if(families.begin(), families.end(), [&](const auto& f) { return f.name == alias.ours; });
    if (ours == families.end()) continue;
    prometheus::MetricFamily& copy = aliases.emplace_back(*ours);
    copy.name = alias.vllm;
    for (prometheus::ClientMetric& sample : copy.metric) {
      const bool has_model = std::any_of(sample.label.begin(), sample.label.end(),
                                         [](const auto& label) { return label.name == "model_name"; });
      if (!has_model) sample.label.push_back({"model_name", model});
    }
  }
  std::move(aliases.begin(), aliases.end(), std::back_inserter(families));
}

}  // namespace winnow
