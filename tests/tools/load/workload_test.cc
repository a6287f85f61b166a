#include "tools/load/workload.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

namespace winnow {
namespace {

WorkloadOptions Options(uint32_t requests) {
  WorkloadOptions options;
  options.num_requests = requests;
  options.input = *LengthMix::Parse("1000");
  options.output = *LengthMix::Parse("10-20");
  return options;
}

TEST(Workload, IsAFunctionOfItsOptions) {
  WorkloadOptions options = Options(50);
  options.rate_per_s = 3;
  const std::vector<PlannedRequest> a = PlanWorkload(options), b = PlanWorkload(options);
  options.seed = 2;
  const std::vector<PlannedRequest> c = PlanWorkload(options);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].at_s, b[i].at_s);
    EXPECT_EQ(a[i].prompt, b[i].prompt);
    EXPECT_NE(a[i].prompt, c[i].prompt);
  }
}

TEST(Workload, PoissonArrivalsHaveExponentialGaps) {
  WorkloadOptions options = Options(20000);
  options.rate_per_s = 50;
  double previous = 0, sum = 0, squares = 0;
  for (const PlannedRequest& request : PlanWorkload(options)) {
    const double gap = request.at_s - previous;
    ASSERT_GE(gap, 0);
    previous = request.at_s;
    sum += gap;
    squares += gap * gap;
  }
  const double n = options.num_requests, mean = sum / n, variance = squares / n - mean * mean;
  // Mean and deviation of an exponential are both 1 / rate; five standard errors.
  EXPECT_NEAR(mean, 1 / 50.0, 5 / 50.0 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(variance), 1 / 50.0, 5 * std::sqrt(2.0) / 50.0 / std::sqrt(n));
}

TEST(Workload, AClosedLoopStartsAtOnce) {
  for (const PlannedRequest& request : PlanWorkload(Options(20))) EXPECT_EQ(request.at_s, 0);
}

TEST(Workload, PromptsShareTheirPrefixAndNothingElse) {
  WorkloadOptions options = Options(200);
  options.num_prefixes = 3;
  options.shared_fraction = 0.6;
  std::set<uint64_t> prefixes, rests;
  for (const PlannedRequest& request : PlanWorkload(options)) {
    ASSERT_EQ(request.prompt.size(), 2u);
    EXPECT_EQ(request.prompt[0].tokens, 600u);
    EXPECT_EQ(request.prompt_tokens(), 1000u);
    prefixes.insert(request.prompt[0].content);
    rests.insert(request.prompt[1].content);
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(rests.size(), 200u);
}

TEST(Workload, AWhollySharedPromptHasOnePart) {
  WorkloadOptions options = Options(5);
  options.num_prefixes = 1;
  options.shared_fraction = 1;
  for (const PlannedRequest& request : PlanWorkload(options)) EXPECT_EQ(request.prompt.size(), 1u);
}

TEST(PromptTokenIds, EqualPartsGiveEqualIds) {
  const std::vector<uint32_t> a = PromptTokenIds({{5, 100}, {6, 50}}, 10, 1000);
  const std::vector<uint32_t> b = PromptTokenIds({{5, 100}, {7, 50}}, 10, 1000);
  ASSERT_EQ(a.size(), 150u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 100, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 100, a.end(), b.begin() + 100));
  for (const uint32_t id : a) {
    EXPECT_GE(id, 10u);
    EXPECT_LT(id, 1010u);
  }
  EXPECT_GT(std::set<uint32_t>(a.begin(), a.end()).size(), 100u);
}

}  // namespace
}  // namespace winnow
