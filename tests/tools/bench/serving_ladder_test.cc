#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "tools/bench/serving/block_reads.h"
#include "tools/bench/serving/ladder.h"

namespace winnow::serving {
namespace {

// Steps of Qwen3-14B on an H200, in ms, as `winnow bench engine` measured them on 21 and 22 November 2026.
TEST(H200CostsTest, StepsTakeWhatWasMeasured) {
  const H200Costs costs;
  const auto step_ms = [&](double rows, double attended_tokens, double bytes_per_us) {
    return (costs.step_overhead_us + costs.MatmulUs(rows) +
            rows * attended_tokens * costs.kv_token_bytes / bytes_per_us) /
           1e3;
  };
  const double dense = costs.dense_attention_bytes_per_us, sparse = costs.sparse_attention_bytes_per_us;
  EXPECT_NEAR(step_ms(8, 32768, dense), 18.6, 1.86);
  EXPECT_NEAR(step_ms(16, 32768, dense), 29.9, 2.99);
  EXPECT_NEAR(step_ms(32, 8192, dense), 20.4, 2.04);
  EXPECT_NEAR(step_ms(1, 2048, sparse), 7.90, 0.79);
  EXPECT_NEAR(step_ms(8, 2048, sparse), 9.01, 0.90);
  EXPECT_NEAR(step_ms(16, 2048, sparse), 9.65, 0.97);
  // In place with predicted queries at 40k, B = 4, 8 and 12.
  const auto predicted_ms = [&](double rows) {
    return costs.beside_selection * step_ms(rows, 2048, sparse) + rows * 40'960 * costs.selection_us_per_token / 1e3;
  };
  EXPECT_NEAR(predicted_ms(4), 9.39, 0.47);
  EXPECT_NEAR(predicted_ms(8), 9.87, 0.49);
  EXPECT_NEAR(predicted_ms(12), 10.93, 0.55);
  EXPECT_NEAR(step_ms(4, 40'960, dense), 14.40, 0.72);
  EXPECT_NEAR(step_ms(12, 40'960, dense), 27.22, 1.36);
  // 512 alone, and 32k in chunks of 512.
  EXPECT_NEAR(costs.PrefillUs(512, 0) / 1e3, 26.4, 1.3);
  double by_chunks_us = 0;
  for (int chunk = 0; chunk < 64; ++chunk) by_chunks_us += costs.PrefillUs(512, 512 * chunk);
  EXPECT_NEAR(by_chunks_us / 1e3, 2726, 136);
  // 21,700 tokens/s.
  EXPECT_NEAR(8192 / costs.PrefillUs(8192, 0) * 1e6, 21'700, 2'170);
}

TEST(BlockReadsTest, OverlapsAsItSays) {
  BlockReads reads(2048, 5);
  std::deque<std::set<uint32_t>> window;
  double overlap = 0, in_window = 0, read = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto units = reads.Next(40'000);
    const std::set<uint32_t> now(units.begin(), units.end());
    ASSERT_EQ(now.size(), 2048u / BlockReads::kUnitRows);
    ASSERT_LT(*now.rbegin(), 40'000u / BlockReads::kUnitRows);
    if (window.size() == 12) {
      for (const uint32_t unit : now) {
        overlap += window.back().contains(unit);
        in_window += std::any_of(window.begin(), window.end(), [&](const auto& one) { return one.contains(unit); });
        ++read;
      }
      window.pop_front();
    }
    window.push_back(now);
  }
  EXPECT_NEAR(overlap / read, BlockReads::kOverlap, 0.01);
  EXPECT_NEAR(in_window / read, BlockReads::kWindowOverlap, 0.01);
}

TEST(ServingLadderTest, TheSameRunGivesTheSameFigures) {
  const auto requests = PoissonRequests(LongConversations(), 1.5, 40e6, 3);
  const ServingFigures one = Serve(Ladder().back(), {}, requests, 40e6),
                       two = Serve(Ladder().back(), {}, requests, 40e6);
  EXPECT_GT(one.finished, 10u);
  EXPECT_EQ(one.mean_ttft_s, two.mean_ttft_s);
  EXPECT_EQ(one.p99_tbt_ms, two.p99_tbt_ms);
  EXPECT_EQ(one.loaded_rows_per_step, two.loaded_rows_per_step);
}

// At a rate that everybody can serve each request is served whole, in about the time that it takes alone.
TEST(ServingLadderTest, EverySystemServesEverythingWhereThereIsLittleToDo) {
  const double end_us = 300e6;
  const auto requests = PoissonRequests(LongConversations(), 0.1, 0.6 * end_us, 11);
  for (const ServingSystem& system : Ladder()) {
    const ServingFigures figures = Serve(system, {}, requests, end_us);
    EXPECT_EQ(figures.finished, requests.size()) << system.name;
    EXPECT_LT(figures.mean_queueing_s, 0.2) << system.name;
    double tokens = 0;
    for (const VirtualRequest& request : requests) tokens += request.answer_tokens;
    EXPECT_DOUBLE_EQ(figures.tokens_per_s, tokens / (end_us / 1e6)) << system.name;
  }
}

// The ladder in small: fewer minutes, rates further apart, its ends alone.
TEST(ServingLadderTest, TheWholeServesThreeTimesTheRequestsOfDense) {
  const std::vector<ServingSystem> systems = {Ladder().front(), Ladder().back(), WithoutControl()};
  LadderOptions options;
  options.shape = LongConversations();
  options.seconds = 200;
  options.first_rate = 0.25;
  options.rate_factor = 1.35;
  const std::vector<Climb> climbs = ClimbAll(systems, options);
  const LadderVerdict verdict = Judge(std::span(climbs).first(2), climbs[2]);
  EXPECT_GT(climbs[0].goodput_requests_per_s(), 0) << "dense serves nothing: the ratio means nothing";
  EXPECT_GE(verdict.goodput_ratio, 3);
  EXPECT_GE(verdict.ttft_ratio_at_break, 5);
  EXPECT_GE(verdict.control_throughput_ratio, 4) << "it hardly thrashes without control: the test shows nothing";
  EXPECT_GE(verdict.control_load_ratio, 5) << "of steps from before the memory was full, too";
  EXPECT_TRUE(verdict.control_throughput_rises);
}

// Streams that decode while a prompt of 16k comes in: the time between their tokens, with as many injected tokens as a
// chunk has, and with those that the target leaves room for.
TEST(ServingLadderTest, StreamsMeetTheirTargetBesideALongPrompt) {
  constexpr double kPromptUs = 3e6, kEndUs = 60e6;
  const std::vector<VirtualRequest> streams(4, {.new_tokens = 1024, .answer_tokens = 100'000});
  std::vector<VirtualRequest> requests = streams;
  requests.push_back({.arrival_us = kPromptUs, .new_tokens = 16'384, .answer_tokens = 1});
  struct Result {
    double idle_us = 0, p99_us = 0, ttft_s = 0;
  };
  const auto serve = [&](double target_us) {
    ServingSystem system = Ladder().back();
    system.tpot_target_us = target_us;
    std::vector<TokenGap> gaps;
    const ServingFigures figures = Serve(system, {}, requests, kEndUs, &gaps);
    EXPECT_EQ(figures.finished, 1u);
    Result result;
    // What the streams, which came first, had of the mean is what they have without the prompt.
    result.ttft_s = 5 * figures.mean_ttft_s - 4 * Serve(system, {}, streams, kEndUs).mean_ttft_s;
    std::vector<double> beside;
    double idle = 0;
    for (const TokenGap& gap : gaps) {
      if (gap.end_us > 1.5e6 && gap.end_us <= kPromptUs) {
        result.idle_us += gap.length_us;
        ++idle;
      }
    }
    result.idle_us /= idle;
    for (const TokenGap& gap : gaps) {
      const bool is_beside = gap.end_us > kPromptUs && gap.end_us <= kPromptUs + 1e6 * result.ttft_s;
      if (is_beside) beside.push_back(gap.length_us);
    }
    std::sort(beside.begin(), beside.end());
    EXPECT_GT(beside.size(), 20u);
    result.p99_us = beside[static_cast<size_t>(0.99 * static_cast<double>(beside.size() - 1))];
    return result;
  };
  const Result whole = serve(0);
  const double target_us = 3 * whole.idle_us;
  const Result found = serve(target_us);
  GTEST_LOG_(INFO) << "ms between tokens: " << whole.idle_us / 1e3 << " alone, p99 beside the prompt "
                   << whole.p99_us / 1e3 << ", with a target of " << target_us / 1e3 << " " << found.p99_us / 1e3
                   << "; the prompt takes " << whole.ttft_s << " and " << found.ttft_s << " s";
  EXPECT_GT(whole.p99_us, target_us) << "there is nothing to control";
  EXPECT_LE(found.p99_us, target_us);
}

}  // namespace
}  // namespace winnow::serving
