#include "tools/bench/serving/replay.h"

#include <gtest/gtest.h>

namespace winnow::serving {
namespace {

TEST(MeasuredRun, FiguresByHand) {
  const absl::StatusOr<MeasuredRun> run = ReadMeasuredRun(R"({"requests": [
    {"sent_seconds": 2.0, "prompt_tokens": 100, "cached_prompt_tokens": 0, "output_tokens": 3,
     "token_seconds": [2.5, 2.6, 2.8], "error": ""},
    {"sent_seconds": 1.0, "prompt_tokens": 200, "cached_prompt_tokens": 64, "output_tokens": 2,
     "token_seconds": [2.0, 2.3], "error": ""}]})");
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->requests.size(), 2u);
  EXPECT_EQ(run->requests[0].arrival_us, 0);
  EXPECT_EQ(run->requests[0].history_tokens, 64u);
  EXPECT_EQ(run->requests[0].new_tokens, 136u);
  EXPECT_NEAR(run->requests[1].arrival_us, 1e6, 1);
  EXPECT_EQ(run->requests[1].answer_tokens, 3u);
  EXPECT_NEAR(run->figures.mean_ttft_s, 0.75, 1e-9);
  EXPECT_NEAR(run->figures.mean_tbt_ms, 200, 1e-6);  // 100, 200, 300
  EXPECT_NEAR(run->figures.tokens_per_s, 5 / 1.8, 1e-9);
}

TEST(MeasuredRun, RefusesWhatSaysNothing) {
  for (const char* json : {"", "{}", R"({"requests": []})", R"({"requests": [{"prompt_tokens": 5}]})",
                           R"({"requests": [{"sent_seconds": 1, "prompt_tokens": 5, "token_seconds": [2],
                               "error": "HTTP 503"}]})"}) {
    EXPECT_FALSE(ReadMeasuredRun(json).ok()) << json;
  }
}

// Alone on the clock a request takes the costs' prefill and its steps.
TEST(Replay, OfOneRequestIsTheCostsSum) {
  MeasuredRun run;
  run.requests = {{.new_tokens = 1000, .answer_tokens = 11}};
  const H200Costs costs;
  const ClientFigures figures = Replay({.name = "dense"}, costs, run);
  const double step_us =
      costs.step_overhead_us + costs.MatmulUs(1) + 1005 * costs.kv_token_bytes / costs.dense_attention_bytes_per_us;
  EXPECT_NEAR(figures.mean_ttft_s, costs.PrefillUs(1000, 0) / 1e6, 1e-5);
  EXPECT_NEAR(figures.mean_tbt_ms, step_us / 1e3, 0.01 * step_us / 1e3);
  EXPECT_NEAR(figures.tokens_per_s, 11e6 / (costs.PrefillUs(1000, 0) + 10 * step_us), 1);
}

}  // namespace
}  // namespace winnow::serving
