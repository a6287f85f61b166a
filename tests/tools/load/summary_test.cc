#include "tools/load/summary.h"

#include <gtest/gtest.h>

#include "tools/load/report.h"

namespace winnow {
namespace {

TEST(Distribution, PercentilesInterpolate) {
  // numpy.percentile([1, 2, 3, 4, 10], [50, 90, 99]) = [3, 7.6, 9.76]
  const Distribution distribution = DistributionOf({10, 3, 1, 4, 2});
  EXPECT_DOUBLE_EQ(distribution.mean, 4);
  EXPECT_DOUBLE_EQ(distribution.p50, 3);
  EXPECT_DOUBLE_EQ(distribution.p90, 7.6);
  EXPECT_DOUBLE_EQ(distribution.p99, 9.76);
  EXPECT_EQ(DistributionOf({}).count, 0u);
  EXPECT_EQ(DistributionOf({7}).p99, 7);
}

RequestTimes Request(double sent_s, std::vector<double> token_s) {
  RequestTimes times;
  times.due_s = times.sent_s = sent_s;
  times.end_s = token_s.empty() ? sent_s : token_s.back() + 0.25;
  times.token_s = std::move(token_s);
  times.prompt_tokens = 100;
  times.cached_tokens = 40;
  return times;
}

TEST(LoadSummary, FiguresByHand) {
  RequestTimes failed = Request(0, {});
  failed.error = "HTTP 503";
  const LoadSummary summary = Summarize({Request(1, {2, 3, 5}), Request(2, {2.5}), failed}, {});
  EXPECT_EQ(summary.completed, 2u);
  EXPECT_EQ(summary.failed, 1u);
  EXPECT_DOUBLE_EQ(summary.duration_s, 5.25);
  EXPECT_EQ(summary.output_tokens, 4u);
  EXPECT_EQ(summary.prompt_tokens, 200u);
  EXPECT_EQ(summary.cached_tokens, 80u);
  EXPECT_DOUBLE_EQ(summary.ttft_s.mean, 0.75);  // 1 and 0.5
  EXPECT_DOUBLE_EQ(summary.tpot_s.mean, 1.5);   // 3 seconds for two tokens; the other answer has one token
  EXPECT_EQ(summary.tpot_s.count, 1u);
  EXPECT_EQ(summary.itl_s.count, 2u);
  EXPECT_DOUBLE_EQ(summary.itl_s.p50, 1.5);
  EXPECT_DOUBLE_EQ(summary.end_to_end_s.mean, (4.25 + 0.75) / 2);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_s, 4 / 5.25);
}

// A token without text, such as the first part of a character, arrives with the text of the next.
TEST(LoadSummary, TokensAreCountedByTheServer) {
  RequestTimes request = Request(0, {1, 2, 4});
  request.output_tokens = 7;
  const LoadSummary summary = Summarize({request}, {});
  EXPECT_EQ(summary.output_tokens, 7u);
  EXPECT_DOUBLE_EQ(summary.tpot_s.mean, 0.5);
  EXPECT_EQ(summary.itl_s.count, 2u);
  EXPECT_DOUBLE_EQ(summary.itl_s.mean, 1.5);
}

TEST(LoadSummary, GoodputCountsWhatMeetsEveryTarget) {
  const std::vector<RequestTimes> requests = {Request(0, {1, 2, 3}), Request(0, {1, 4, 7}), Request(0, {2, 3, 4})};
  const auto good = [&](const LoadTargets& targets) {
    const LoadSummary summary = Summarize(requests, targets);
    return summary.goodput_per_s * summary.duration_s;
  };
  EXPECT_NEAR(good({}), 3, 1e-9);
  EXPECT_NEAR(good({.ttft_s = 1.5}), 2, 1e-9);
  EXPECT_NEAR(good({.ttft_s = 1.5, .tpot_s = 2}), 1, 1e-9);
  EXPECT_NEAR(good({.end_to_end_s = 3.5}), 1, 1e-9);
}

TEST(LoadSummary, FailuresAreToldByTheirNumber) {
  std::vector<RequestTimes> requests(4);
  requests[0].error = "refused";
  requests[1].error = "gone";
  requests[2].error = "refused";
  requests[3].token_s = {1};
  EXPECT_EQ(FailureText(requests), "failed 2 x: refused\nfailed 1 x: gone\n");
  EXPECT_EQ(FailureText({requests[3]}), "");
  requests[3].token_s.clear();
  EXPECT_NE(FailureText({requests[3]}), "");
}

TEST(LoadSummary, SendingLateIsTheClientsAndShows) {
  RequestTimes late = Request(3, {4});
  late.due_s = 1;
  EXPECT_DOUBLE_EQ(Summarize({late}, {}).lateness_s.p99, 2);
  EXPECT_DOUBLE_EQ(Summarize({late}, {}).ttft_s.p99, 1);
}

}  // namespace
}  // namespace winnow
