#include "router/keys/key_metrics.h"

namespace winnow {

void WriteKeyMetrics(const KeyRing& ring, FamilyWriter& writer) {
  const KeyRing::Counters& counters = ring.counters();
  const char* refused = "Calls refused because of their credentials.";
  writer.Counter("winnow_unauthenticated_calls_total", refused, static_cast<double>(counters.without_key.load()),
                 {{"reason", "no_key"}});
  writer.Counter("winnow_unauthenticated_calls_total", refused, static_cast<double>(counters.wrong_key.load()),
                 {{"reason", "wrong_key"}});
  const char* reloads = "Changes of the file of API keys that were read; those that failed left the keys as they were.";
  writer.Counter("winnow_api_key_reloads_total", reloads, static_cast<double>(counters.reloads.load()),
                 {{"outcome", "ok"}});
  writer.Counter("winnow_api_key_reloads_total", reloads, static_cast<double>(counters.failed_reloads.load()),
                 {{"outcome", "failed"}});
  const auto accounts = ring.accounts();
  writer.Gauge("winnow_api_keys", "Keys in force.", static_cast<double>(accounts.size()));
  for (const auto& account : accounts) {
    const ApiKey key = account->key();
    const KeyUsage usage = account->usage();
    const MetricLabels labels = {{"key", key.name}, {"tenant", key.tenant_name()}};
    const auto with = [&](const char* label, std::string_view value) {
      MetricLabels more = labels;
      more[label] = std::string(value);
      return more;
    };
    writer.Counter("winnow_api_key_requests_total", "Prompts admitted, by key.", static_cast<double>(usage.admitted),
                   labels);
    writer.Gauge("winnow_api_key_requests_running", "Samples under way, by key.", usage.running, labels);
    const char* tokens = "Tokens of prompts and answers, by key.";
    writer.Counter("winnow_api_key_tokens_total", tokens, static_cast<double>(usage.prompt_tokens),
                   with("kind", "prompt"));
    writer.Counter("winnow_api_key_tokens_total", tokens, static_cast<double>(usage.answer_tokens),
                   with("kind", "answer"));
    writer.Counter("winnow_api_key_cached_prompt_tokens_total",
                   "Tokens of prompts that were in the prefix cache when a rank began with the prompt, by key.",
                   static_cast<double>(usage.cached_prompt_tokens), labels);
    writer.Histogram("winnow_api_key_queue_time_seconds",
                     "From the admission of a prompt by the router to when a rank begins to compute it, by key.",
                     account->queue_seconds(), labels);
    for (size_t i = 0; i < usage.refused.size(); ++i) {
      writer.Counter("winnow_api_key_refusals_total", "Requests refused because of a limit of their key.",
                     static_cast<double>(usage.refused[i]), with("limit", KeyUsage::kRefusalNames[i]));
    }
  }
}

}  // namespace winnow
