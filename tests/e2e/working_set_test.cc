// What is resident of a sequence does not grow with its context; the cache rank holds all of it.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

// Of the demo model: a block holds 32 positions of one of these.
constexpr double kLists = 8 * 2;
constexpr double kBlockTokens = 32;
constexpr int kTokens = 300;  // enough for a cache rank's next report of its blocks

struct NarrowBudget {
  static Cluster::Options Options() { return {.flags = {"--budget=512"}}; }
};

class WorkingSet : public SharedCluster<NarrowBudget> {
 protected:
  struct Residency {
    double rows = NAN;           // resident at the inference rank
    double prefill_bytes = NAN;  // left of the prompt's own KV
    double cached_tokens = NAN;  // at the cache rank, in every layer and head
  };

  // Looks at both ranks while a prompt of that length is being answered.
  static Residency WhileDecoding(size_t prompt_tokens) {
    Residency residency;
    const Completion completion =
        StreamCompletion(cluster_->http(), GreedyRequest(DemoText(prompt_tokens), kTokens), [&](size_t tokens) {
          if (tokens < 4 || !std::isnan(residency.rows)) return true;
          const Metrics inference = cluster_->MetricsOf("inference-0");
          residency.rows = inference.Value("winnow_working_set_rows");
          residency.prefill_bytes = inference.Value("winnow_prefill_kv_bytes");
          WaitUntil(std::chrono::seconds(2), [&] {
            const Metrics cache = cluster_->MetricsOf("cache-0");
            residency.cached_tokens = cache.Value("winnow_kv_blocks", {{"state", "used"}}) * kBlockTokens / kLists;
            return residency.cached_tokens >= static_cast<double>(prompt_tokens);
          });
          return true;
        });
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_GT(completion.Stat("streamed_rows"), 0);
    return residency;
  }
};

TEST_F(WorkingSet, IsTheSameForAnyContext) {
  const Residency shorter = WhileDecoding(4'000);
  const Residency longer = WhileDecoding(16'000);
  EXPECT_GT(shorter.rows, 0);
  EXPECT_EQ(shorter.rows, longer.rows);
  EXPECT_EQ(shorter.prefill_bytes, 0);
  EXPECT_EQ(longer.prefill_bytes, 0);
  for (const auto& [tokens, residency] : {std::pair(4'000, shorter), std::pair(16'000, longer)}) {
    EXPECT_GE(residency.cached_tokens, tokens);
    // Bounds of pages of 16 take blocks of their own.
    EXPECT_LE(residency.cached_tokens, (tokens + kTokens) * 17 / 16 + 2 * kBlockTokens);
  }
  // Sinks, ring of the newest rows, a pool of four budgets, in whole pages of 64.
  EXPECT_LE(longer.rows, kLists * (4 + 128 + 4 * 512 + 64));
}

TEST_F(WorkingSet, IsFreeAfterwards) {
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(20), [] {
    const Metrics inference = cluster_->MetricsOf("inference-0"), cache = cluster_->MetricsOf("cache-0");
    return inference.Value("winnow_working_set_rows") == 0 &&
           inference.Value("winnow_slot_pages", {{"state", "used"}}) == 0 &&
           cache.Value("winnow_kv_blocks", {{"state", "used"}}) == 0;
  }));
}

}  // namespace
}  // namespace winnow::e2e
