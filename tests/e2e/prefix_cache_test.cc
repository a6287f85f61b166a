// A prompt that begins like an earlier one is not computed twice, and nothing but the time tells.
#include <gtest/gtest.h>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

constexpr int kTokens = 40;
constexpr uint32_t kBlock = 32;
// What is always computed: at most the recent window, rounded up to whole blocks twice.
constexpr uint32_t kMostComputed = 64 + 2 * kBlock;

struct Caching {
  static Cluster::Options Options() { return {.flags = {"--budget=256", "--max-context=8192"}}; }
};
struct NotCaching {
  static Cluster::Options Options() {
    return {.flags = {"--budget=256", "--max-context=8192", "--prefix-cache=false"}};
  }
};

Json RequestFor(const std::string& preset, const TokenIds& prompt) {
  Json request = GreedyRequest(prompt, kTokens);
  request["winnow"] = {{"selection", preset}};
  return request;
}

uint32_t CachedTokens(const Completion& completion) {
  return completion.usage.at("prompt_tokens_details").at("cached_tokens").get<uint32_t>();
}

class PrefixCache : public SharedCluster<Caching>, public testing::WithParamInterface<const char*> {
 protected:
  // Of one preset: presets with the same index of keys share prefixes.
  static TokenIds OwnText(size_t tokens, size_t offset) {
    return DemoText(tokens, offset + 100 * std::string_view(GetParam()).size());
  }
  static double Computed() { return cluster_->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"); }
  // What a cluster answers that keeps nothing.
  static TokenIds Reference(const Json& request) {
    static std::unique_ptr<Cluster> plain = Cluster::Start(NotCaching::Options()).value();
    for (int i = 0; i < 2; ++i) {
      const Completion completion = Complete(plain->http(), request);
      EXPECT_TRUE(completion.ok()) << completion.error;
      EXPECT_EQ(CachedTokens(completion), 0u);
      if (i == 1) return completion.ids;
    }
    return {};
  }
};

TEST_P(PrefixCache, TheSamePromptAgainComputesItsEndAlone) {
  const TokenIds prompt = OwnText(3000, 11);
  const Json request = RequestFor(GetParam(), prompt);
  const Completion first = Complete(cluster_->http(), request);
  ASSERT_TRUE(first.ok()) << first.error;
  EXPECT_EQ(CachedTokens(first), 0u);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const double before = Computed();
    const Completion again = Complete(cluster_->http(), request);
    ASSERT_TRUE(again.ok()) << again.error;
    EXPECT_EQ(again.ids, first.ids);
    EXPECT_EQ(again.Stat("streamed_rows"), first.Stat("streamed_rows"));
    const uint32_t cached = CachedTokens(again);
    EXPECT_EQ(cached % kBlock, 0u);
    EXPECT_GE(cached, prompt.size() - kMostComputed);
    EXPECT_LT(cached, prompt.size());
    EXPECT_EQ(Computed() - before, prompt.size() - cached);
  }
  EXPECT_EQ(first.ids, Reference(request));
}

TEST_P(PrefixCache, PromptsThatPartComputeWhatTheyDoNotShare) {
  TokenIds one = OwnText(2000, 5000), other = one;
  const TokenIds tail = DemoText(400, 9000);
  other.resize(1234);
  other.insert(other.end(), tail.begin(), tail.end());
  const Completion first = Complete(cluster_->http(), RequestFor(GetParam(), one));
  ASSERT_TRUE(first.ok()) << first.error;
  const Completion second = Complete(cluster_->http(), RequestFor(GetParam(), other));
  ASSERT_TRUE(second.ok()) << second.error;
  EXPECT_EQ(CachedTokens(second), 1234 / kBlock * kBlock);
  EXPECT_EQ(second.ids, Reference(RequestFor(GetParam(), other)));
}

INSTANTIATE_TEST_SUITE_P(Presets, PrefixCache, testing::Values("dense", "winnow", "async-token"), [](const auto& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
});

// Whose a prompt was can be told from the time that it takes: so nobody shares with another.
TEST(PrefixCacheTenants, KeysDoNotShareWhatTheyHaveComputed) {
  const auto cluster = StartOrFail({"--budget=256", "--max-context=4096"});
  ASSERT_NE(cluster, nullptr);
  const Json request = RequestFor("winnow", DemoText(1000, 40));
  TokenIds ids;
  for (const char* key : {"one", "other", ""}) {
    const HttpClient client(cluster->http_address(), std::chrono::seconds(120), key);
    const Completion first = Complete(client, request), again = Complete(client, request);
    ASSERT_TRUE(first.ok() && again.ok()) << first.error << again.error;
    EXPECT_EQ(CachedTokens(first), 0u) << key;
    EXPECT_GT(CachedTokens(again), 800u) << key;
    if (ids.empty()) ids = first.ids;
    EXPECT_EQ(first.ids, ids);
    EXPECT_EQ(again.ids, ids);
  }
}

class PrefixCacheMetrics : public SharedCluster<Caching> {};

TEST_F(PrefixCacheMetrics, CountHitsAndWhatIsKept) {
  const TokenIds prompt = DemoText(1000, 300);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Complete(cluster_->http(), RequestFor("dense", prompt)).ok());
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(30), [] {
    const Metrics cache = cluster_->MetricsOf("cache-0");
    return cache.Value("winnow_kv_blocks", {{"state", "used"}}) == 0 &&
           cache.Value("winnow_prefix_cache_blocks", {{"state", "idle"}}) > 0;
  }));
  const Metrics cache = cluster_->MetricsOf("cache-0"), inference = cluster_->MetricsOf("inference-0");
  EXPECT_EQ(cache.Value("winnow_prefix_cache_hits_total"), 1);
  EXPECT_EQ(cache.Value("winnow_prefix_cache_lookup_tokens_total"), 2000);
  EXPECT_GT(cache.Value("winnow_prefix_cache_hit_tokens_total"), 800);
  EXPECT_GT(cache.Value("winnow_prefix_cache_bytes"), 0);
  EXPECT_EQ(inference.Value("winnow_rank_cached_prompt_tokens_total"),
            cache.Value("winnow_prefix_cache_hit_tokens_total"));
  EXPECT_EQ(cluster_->MetricsOf("router-0").Value("winnow_router_cached_prompt_tokens_total"),
            cache.Value("winnow_prefix_cache_hit_tokens_total"));
}

}  // namespace
}  // namespace winnow::e2e
