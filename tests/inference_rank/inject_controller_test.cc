#include "inference_rank/inject_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace winnow {
namespace {

// What an iteration with n injected tokens takes, in microseconds.
using StepTime = std::function<double(uint32_t)>;

struct Outcome {
  uint32_t tokens = 0;    // at the end
  uint64_t injected = 0;  // in the second half of the steps
  int beyond_target = 0;  // steps of the second half
  double longest_us = 0;  // of the second half
};

// A prompt always waits; a pause ends as Scheduler::Plan ends it.
Outcome Simulate(InjectController& controller, const StepTime& step_time, double target_us, int steps,
                 uint32_t chunk = 512) {
  Outcome outcome;
  double since_prefill_us = 0;
  for (int i = 0; i < steps; ++i) {
    uint32_t tokens = controller.tokens();
    if (since_prefill_us >= 1e6) tokens = chunk;
    const double step_us = step_time(tokens);
    since_prefill_us = tokens > 0 ? 0 : since_prefill_us + step_us;
    controller.Observe(tokens, step_us);
    if (i < steps / 2) continue;
    outcome.injected += tokens;
    outcome.beyond_target += step_us > target_us;
    outcome.longest_us = std::max(outcome.longest_us, step_us);
  }
  outcome.tokens = controller.tokens();
  return outcome;
}

TEST(InjectControllerTest, FindsTheMostTokensThatRespectTheTarget) {
  struct Case {
    const char* name;
    StepTime step_time;
    uint32_t fitting;  // the most n with step_time(n) <= 0.9 * 50 ms
  };
  const Case cases[] = {
      {"proportional", [](uint32_t n) { return 10e3 + 200.0 * n; }, 175},
      {"with a second reading of the weights", [](uint32_t n) { return 10e3 + (n > 0 ? 10e3 : 0) + 100.0 * n; }, 250},
      {"quadratic", [](uint32_t n) { return 10e3 + 20.0 * n + 0.5 * n * n; }, 245},
  };
  for (const Case& c : cases) {
    InjectController controller(50e3, 512);
    for (int i = 0; i < 5; ++i) controller.Observe(0, c.step_time(0));
    const Outcome outcome = Simulate(controller, c.step_time, 50e3, 200);
    EXPECT_LE(c.step_time(outcome.tokens), 45e3 * 1.001) << c.name;
    EXPECT_GE(outcome.tokens, 0.9 * c.fitting) << c.name;
    EXPECT_EQ(outcome.beyond_target, 0) << c.name;
  }
}

TEST(InjectControllerTest, FindsThemWithoutHavingSeenAStepAlone) {
  InjectController controller(50e3, 512);
  const Outcome outcome = Simulate(
      controller, [](uint32_t n) { return 10e3 + 200.0 * n; }, 50e3, 200);
  EXPECT_NEAR(outcome.tokens, 175, 2);
}

TEST(InjectControllerTest, StaysWithinItsLimit) {
  InjectController controller(1e6, 100);
  EXPECT_EQ(Simulate(
                controller, [](uint32_t n) { return 1e3 + n; }, 1e6, 100)
                .tokens,
            100u);
}

TEST(InjectControllerTest, FollowsABatchThatGrowsAndShrinks) {
  InjectController controller(50e3, 512);
  double alone_us = 10e3;
  const StepTime step_time = [&](uint32_t n) { return alone_us + 200.0 * n; };
  EXPECT_NEAR(Simulate(controller, step_time, 50e3, 100).tokens, 175, 2);
  alone_us = 30e3;
  EXPECT_NEAR(Simulate(controller, step_time, 50e3, 1000).tokens, 75, 4);
  alone_us = 60e3;  // nothing fits
  EXPECT_EQ(Simulate(controller, step_time, 50e3, 100).tokens, 0u);
  alone_us = 10e3;
  EXPECT_NEAR(Simulate(controller, step_time, 50e3, 1000).tokens, 175, 2);
}

TEST(InjectControllerTest, PausesWhereNothingFitsAndPromptsStillGoOn) {
  InjectController controller(50e3, 512);
  // A prefill pass costs more than the target, however short it is.
  const Outcome outcome = Simulate(
      controller, [](uint32_t n) { return 10e3 + (n > 0 ? 60e3 + 100.0 * n : 0); }, 50e3, 4000);
  EXPECT_GT(outcome.injected, 0u);
  // The chunk each second, of about 100 steps, the step that asks whether the pause is over, and tries in between.
  EXPECT_LE(outcome.beyond_target, 0.03 * 2000);
}

TEST(InjectControllerTest, KeepsNoisyStepsBelowTheTarget) {
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 0.03);
  const StepTime step_time = [&](uint32_t n) { return (10e3 + 200.0 * n) * std::exp(noise(random)); };
  InjectController controller(50e3, 512);
  const Outcome outcome = Simulate(controller, step_time, 50e3, 4000);
  EXPECT_LE(outcome.beyond_target, 0.01 * 2000) << "99 of 100 steps respect the target";
  EXPECT_GE(outcome.injected, 2000u * 120) << "and prompts get most of what fits";
}

TEST(InjectControllerTest, OneSlowStepDoesNotStopPrefill) {
  InjectController controller(50e3, 512);
  Simulate(
      controller, [](uint32_t n) { return 10e3 + 200.0 * n; }, 50e3, 100);
  controller.Observe(controller.tokens(), 2e6);
  EXPECT_GT(controller.tokens(), 30u);
}

}  // namespace
}  // namespace winnow
