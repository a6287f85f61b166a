#include "inference_rank/scheduler/prefill_work.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

// FLOPs of one layer, matrix by matrix and pair by pair.
TEST(PrefillWork, IsInProportionToFlops) {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_query_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  const auto flops = [&](int tokens, int first) {
    double sum = 0;
    for (int i = 0; i < tokens; ++i) {
      const double qkv = 512.0 * (8 + 2 + 2) * 64, o = 8 * 64 * 512.0, mlp = 3 * 512.0 * 1408;
      sum += 2 * (qkv + o + mlp) + (first + i + 0.5) * 8 * (2 * 64 + 2 * 64);
    }
    return sum;
  };
  const PrefillWork work = PrefillWork::Of(config);
  EXPECT_NEAR(work.ThroughLayer(1, 0), 1, 1e-3);
  for (const auto& [tokens, first] : {std::pair{16, 0}, {512, 0}, {512, 15872}, {40, 16000}}) {
    EXPECT_NEAR(work.ThroughLayer(tokens, first) / work.ThroughLayer(1, 0), flops(tokens, first) / flops(1, 0), 1e-6)
        << tokens << " tokens behind " << first;
  }
}

TEST(PrefillWork, TokensWithinIsItsInverse) {
  for (const double per_earlier_token : {0.0, 1e-6, 3.6e-4, 0.1}) {
    const PrefillWork work{.per_earlier_token = per_earlier_token};
    for (const double first : {0.0, 1.0, 500.0, 100'000.0}) {
      for (const double tokens : {0.0, 1.0, 16.0, 4096.0}) {
        EXPECT_NEAR(work.TokensWithin(work.ThroughLayer(tokens, first), first), tokens, 1e-6 * (1 + tokens))
            << per_earlier_token << " " << first;
      }
    }
  }
}

// A rank asks for the work of its least piece, and has to get the tokens of it.
TEST(PrefillWork, WholeTokensAreNotLostToRounding) {
  for (const double per_earlier_token : {0.0, 6.5e-4, 3.6e-4, 0.1}) {
    const PrefillWork work{.per_earlier_token = per_earlier_token};
    for (double first = 0; first < 20'000; first += 7) {
      for (double tokens = 1; tokens < 600; tokens = tokens * 2 + 1) {
        for (const double layers : {1.0, 3.0, 40.0}) {
          const double of_layers = layers * work.ThroughLayer(tokens, first);
          ASSERT_EQ(work.WholeTokensWithin(of_layers / layers, first), tokens) << per_earlier_token << " " << first;
          ASSERT_EQ(work.WholeTokensWithin(0.9999 * of_layers / layers, first), tokens - 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
