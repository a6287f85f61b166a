#include "cmd/status/cluster_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/json.h"

namespace winnow {
namespace {

using testing::HasSubstr;

ClusterScrape At(int second, const std::string& router, const std::string& inference, const char* cache) {
  ClusterScrape scrape{
      .at = std::chrono::steady_clock::time_point(std::chrono::hours(1) + std::chrono::seconds(second)),
      .not_ready = "",
      .processes = {}};
  scrape.processes.push_back({"router", "router-0", "a:9100", MetricsText(router)});
  scrape.processes.push_back({"inference-rank", "inference-0", "a:9101", MetricsText(inference)});
  scrape.processes.push_back({"cache-rank", "cache-0", "a:9102", std::nullopt});
  if (cache != nullptr) scrape.processes.back().metrics.emplace(cache);
  return scrape;
}

const char* const kRouterBefore =
    "winnow_generation_tokens_total 100\nwinnow_requests_total{code=\"200\"} 5\nwinnow_requests_total{code=\"400\"} 1\n"
    "winnow_inter_token_latency_seconds_bucket{le=\"0.01\"} 7\n"
    "winnow_inter_token_latency_seconds_bucket{le=\"+Inf\"} 7\n";
const char* const kRouterAfter =
    "winnow_generation_tokens_total 180\nwinnow_requests_total{code=\"200\"} 8\nwinnow_requests_total{code=\"400\"} 2\n"
    "winnow_num_requests_running 3\nwinnow_kv_cache_usage_ratio 0.25\n"
    "winnow_inter_token_latency_seconds_bucket{le=\"0.01\"} 17\n"
    "winnow_inter_token_latency_seconds_bucket{le=\"+Inf\"} 17\n";
const char* const kInferenceBefore =
    "winnow_decode_steps_total 10\nwinnow_selection_hits_total 50\nwinnow_selection_lookups_total 100\n"
    "winnow_captured_attention_mass_sum{layer=\"0\"} 9\nwinnow_captured_attention_mass_count{layer=\"0\"} 10\n";
const char* const kInferenceAfter =
    "winnow_decode_steps_total 50\nwinnow_selection_hits_total 125\nwinnow_selection_lookups_total 200\n"
    "winnow_slot_pages{state=\"used\"} 30\nwinnow_slot_pages{state=\"free\"} 10\n"
    "winnow_captured_attention_mass_sum{layer=\"0\"} 18\nwinnow_captured_attention_mass_count{layer=\"0\"} 20\n";

TEST(ClusterStatus, FiguresAreOfTheTimeBetweenTwoScrapes) {
  const ClusterStatus status = StatusBetween(
      At(0, kRouterBefore, kInferenceBefore, "winnow_plans_total 0\n"),
      At(2, kRouterAfter, kInferenceAfter, "winnow_plans_total 4\nwinnow_sequences{state=\"active\"} 3\n"));
  EXPECT_EQ(status.running, 3);
  EXPECT_EQ(status.tokens_per_s, 40);
  EXPECT_EQ(status.requests_per_s, 2);
  EXPECT_EQ(status.between_tokens_p50_s, 0.005);
  EXPECT_FALSE(status.first_token_p50_s.has_value());
  EXPECT_DOUBLE_EQ(status.captured_mass.value(), 0.9);
  ASSERT_EQ(status.processes.size(), 3u);
  EXPECT_EQ(status.processes[0].memory_share, 0.25);
  EXPECT_EQ(status.processes[1].steps_per_s, 20);
  EXPECT_EQ(status.processes[1].resident_share, 0.75);
  EXPECT_EQ(status.processes[1].memory_share, 0.75);
  EXPECT_EQ(status.processes[2].steps_per_s, 2);
  EXPECT_EQ(status.processes[2].running, 3);
}

TEST(ClusterStatus, AProcessThatIsSilentOrNewHasNoRates) {
  const ClusterStatus status =
      StatusBetween(At(0, kRouterAfter, kInferenceAfter, nullptr), At(1, kRouterBefore, kInferenceBefore, nullptr));
  EXPECT_FALSE(status.tokens_per_s.has_value()) << "counters have begun anew";
  EXPECT_FALSE(status.processes[2].answers);
  EXPECT_THAT(ToText(status), HasSubstr("cache-0          does not answer at a:9102\n"));
  const auto json = ToJson(status);
  EXPECT_TRUE(json["tokens_per_s"].is_null());
  EXPECT_EQ(json["processes"][2]["answers"], false);
  EXPECT_EQ(json["ready"], true);
}

TEST(ClusterStatus, SaysWhyItIsNotReady) {
  ClusterScrape scrape = At(1, kRouterAfter, kInferenceAfter, nullptr);
  scrape.not_ready = "no cache rank is registered";
  const ClusterStatus status = StatusBetween(At(0, kRouterBefore, kInferenceBefore, nullptr), scrape);
  EXPECT_EQ(ToText(status).rfind("not ready: no cache rank is registered\n", 0), 0u);
  EXPECT_EQ(ToJson(status)["reason"], "no cache rank is registered");
}

TEST(ClusterStatus, SaysHowTheRouterStandsWithTheRegistry) {
  ClusterScrape scrape = At(0, kRouterBefore, kInferenceBefore, nullptr);
  EXPECT_THAT(ToText(StatusBetween(scrape, scrape)), testing::Not(HasSubstr("registry")));
  scrape.registry = RegistryStatus{.connected = true, .away_s = 0, .routers = {"a:8001", "b:8001"}};
  EXPECT_THAT(ToText(StatusBetween(scrape, scrape)), HasSubstr("registry      connected; routers: a:8001, b:8001\n"));
  scrape.registry->connected = false;
  scrape.registry->away_s = 12;
  EXPECT_THAT(ToText(StatusBetween(scrape, scrape)),
              HasSubstr("registry      away for 12.0 s; what was known holds; routers: a:8001, b:8001\n"));
  EXPECT_EQ(ToJson(StatusBetween(scrape, scrape))["registry"].dump(),
            R"({"connected":false,"away_s":12.0,"routers":["a:8001","b:8001"]})");
}

}  // namespace
}  // namespace winnow
