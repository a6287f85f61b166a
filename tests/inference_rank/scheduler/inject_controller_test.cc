#include "inference_rank/scheduler/inject_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace winnow {
namespace {

// What computes, on a clock of its own: microseconds.
struct Machine {
  std::function<double()> step_us;
  std::function<double(double work)> piece_us;
  double least_work = 16;
};

struct Outcome {
  double work = 0;              // injected in the second half of the steps
  std::vector<double> gaps_us;  // between tokens, of the second half, sorted
  double quantile_us(double share) const {
    return gaps_us[static_cast<size_t>(share * static_cast<double>(gaps_us.size() - 1))];
  }
  double work_per_step() const { return work / static_cast<double>(gaps_us.size()); }
};

// One iteration as the engine runs it, with a prompt that never ends: pieces while there is room, then a step. Returns
// the time from token to token and adds up work.
double Iterate(InjectController& controller, const Machine& machine, double* work) {
  double since_token_us = 0;
  while (true) {
    const double piece = controller.WorkWithin(controller.RoomUs(since_token_us), machine.least_work);
    if (piece < machine.least_work) break;
    const double us = machine.piece_us(piece);
    controller.ObservePrefill(piece, us);
    since_token_us += us;
    *work += piece;
  }
  const double step_us = machine.step_us();
  controller.ObserveDecode(step_us, /*prompt_waits=*/true);
  return since_token_us + step_us;
}

Outcome Simulate(InjectController& controller, const Machine& machine, int steps) {
  Outcome outcome;
  for (int i = 0; i < steps; ++i) {
    double work = 0;
    const double gap_us = Iterate(controller, machine, &work);
    if (i < steps / 2) continue;
    outcome.work += work;
    outcome.gaps_us.push_back(gap_us);
  }
  std::sort(outcome.gaps_us.begin(), outcome.gaps_us.end());
  return outcome;
}

std::function<double()> Always(double us) {
  return [us] { return us; };
}

TEST(InjectControllerTest, UsesWhatTheTargetLeaves) {
  struct Case {
    const char* name;
    std::function<double(double)> piece_us;
    double fitting;  // the most work of one piece in 0.8 * 50 ms - 10 ms
  };
  const Case cases[] = {
      {"proportional", [](double work) { return 20 * work; }, 1500},
      {"with a reading of the weights", [](double work) { return 10e3 + 20 * work; }, 1000},
      {"hardly more than the weights", [](double work) { return 25e3 + 2 * work; }, 2500},
      {"somewhat quadratic", [](double work) { return 15 * work + 0.003 * work * work; }, 1531},
  };
  for (const Case& c : cases) {
    InjectController controller(50e3);
    const Outcome outcome = Simulate(controller, {.step_us = Always(10e3), .piece_us = c.piece_us}, 2000);
    EXPECT_LE(outcome.quantile_us(0.99), 40e3 * 1.001) << c.name;
    EXPECT_GE(outcome.work_per_step(), 0.9 * c.fitting) << c.name;
  }
}

TEST(InjectControllerTest, BeginsSmallAndAtMostDoubles) {
  InjectController controller(50e3);
  EXPECT_EQ(controller.WorkWithin(controller.RoomUs(0), 16), 0) << "nothing is known of steps";
  controller.ObserveDecode(10e3, /*prompt_waits=*/false);
  EXPECT_DOUBLE_EQ(controller.RoomUs(0), 40e3 - 10e3);
  EXPECT_DOUBLE_EQ(controller.RoomUs(5e3), 40e3 - 15e3);
  EXPECT_EQ(controller.WorkWithin(35e3, 16), 16);
  controller.ObservePrefill(16, 32);
  EXPECT_EQ(controller.WorkWithin(35e3, 16), 32);
  EXPECT_EQ(controller.WorkWithin(0, 16), 0);
  EXPECT_EQ(controller.WorkWithin(-1, 16), 0);
}

// One step in 25 takes 3 x as long. With a target of 60 ms, aiming at 48 with the mean step of 10.8 would leave 37 to
// prefill, and those steps would end at 67.
TEST(InjectControllerTest, LeavesRoomForTheTailOfSteps) {
  int i = 0;
  const Machine machine{.step_us = [&] { return ++i % 25 == 0 ? 30e3 : 10e3; },
                        .piece_us = [](double work) { return 20 * work; }};
  InjectController controller(60e3);
  const Outcome outcome = Simulate(controller, machine, 2000);
  EXPECT_LE(outcome.quantile_us(0.99), 60e3);
  EXPECT_GE(outcome.work_per_step(), 0.9 * (48e3 - 30e3) / 20) << "and no more than that";
}

TEST(InjectControllerTest, KeepsNoisyTimesBelowTheTarget) {
  for (const double deviation : {0.03, 0.1, 0.2}) {
    std::mt19937 random(3);
    std::normal_distribution<double> noise(0, deviation);
    const Machine machine{.step_us = [&] { return 10e3 * std::exp(noise(random)); },
                          .piece_us = [&](double work) { return 20 * work * std::exp(noise(random)); }};
    InjectController controller(50e3);
    const Outcome outcome = Simulate(controller, machine, 8000);
    EXPECT_LE(outcome.quantile_us(0.99), 50e3) << deviation;
    EXPECT_GE(outcome.work_per_step(), 0.7 * 1500) << "prompts get most of what fits, with deviation " << deviation;
  }
}

TEST(InjectControllerTest, ASlowPieceShortensThoseAfterIt) {
  InjectController controller(50e3);
  Machine machine{.step_us = Always(10e3), .piece_us = [](double work) { return 20 * work; }};
  Simulate(controller, machine, 200);
  const double whole = controller.WorkWithin(controller.RoomUs(0), 16);
  EXPECT_NEAR(whole, 1500, 20);
  EXPECT_NEAR(controller.WorkWithin(controller.RoomUs(20e3), 16), (30e3 - 20e3) / 20, 20);
  EXPECT_NEAR(controller.WorkWithin(controller.RoomUs(36e3), 16), 10e3 / 4 / 20, 5) << "its share of one step";
}

TEST(InjectControllerTest, AnInterruptedPieceDoesNotStopPrefill) {
  InjectController controller(50e3);
  const Machine machine{.step_us = Always(10e3), .piece_us = [](double work) { return 20 * work; }};
  Simulate(controller, machine, 200);
  controller.ObservePrefill(1000, 2e6);
  EXPECT_GT(controller.WorkWithin(controller.RoomUs(0), 16), 1000);
}

TEST(InjectControllerTest, APieceThatIsOverAtOnceDoesNotMisleadIt) {
  InjectController controller(50e3);
  const Machine machine{.step_us = Always(10e3), .piece_us = [](double work) { return 20 * work; }};
  Simulate(controller, machine, 200);
  for (int i = 0; i < 3; ++i) controller.ObservePrefill(1000, 1);
  EXPECT_LT(controller.WorkWithin(controller.RoomUs(0), 16), 1.1 * 1500);
}

// Pieces that were all far larger leave the fixed part open: it is not taken for so much that nothing small fits.
TEST(InjectControllerTest, TriesSmallPiecesAfterLargeOnes) {
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 0.05);
  InjectController controller(50e3);
  for (int i = 0; i < 256; ++i) controller.ObserveDecode(10e3, /*prompt_waits=*/false);
  for (int i = 0; i < 64; ++i) controller.ObservePrefill(20'000, 400e3 * std::exp(noise(random)));
  controller.ObservePrefill(16, 400);
  EXPECT_GT(controller.WorkWithin(controller.RoomUs(0), 16), 500);
}

TEST(InjectControllerTest, FollowsABatchThatGrowsAndShrinks) {
  double step_us = 10e3;
  const Machine machine{.step_us = [&] { return step_us; }, .piece_us = [](double work) { return 20 * work; }};
  InjectController controller(50e3);
  EXPECT_NEAR(Simulate(controller, machine, 600).work_per_step(), 30e3 / 20, 20);
  step_us = 30e3;
  EXPECT_NEAR(Simulate(controller, machine, 600).work_per_step(), 10e3 / 20, 20);
  step_us = 60e3;
  EXPECT_NEAR(Simulate(controller, machine, 600).work_per_step(), 60e3 / 4 / 20, 20) << "nothing fits: a fifth of time";
  step_us = 10e3;
  EXPECT_NEAR(Simulate(controller, machine, 600).work_per_step(), 30e3 / 20, 20);
}

// Three steps in a hundred miss the target without any prefill: stopping prompts would not help.
TEST(InjectControllerTest, ATailThatNothingCanHelpDoesNotStopPrompts) {
  int i = 0;
  const Machine machine{.step_us = [&] { return ++i % 33 == 0 ? 80e3 : 10e3; },
                        .piece_us = [](double work) { return 20 * work; }};
  InjectController controller(50e3);
  EXPECT_GE(Simulate(controller, machine, 2000).work_per_step(), 0.9 * (40e3 - 25e3) / 20);
}

// A prompt that would never fit goes on in pieces of the least size, so seldom that they take a fifth of the time.
TEST(InjectControllerTest, WhatNeverFitsGoesOnInSmallPieces) {
  const Machine machine{.step_us = Always(45e3), .piece_us = [](double work) { return 20 * work; }, .least_work = 1000};
  InjectController controller(50e3);
  Simulate(controller, machine, 10);
  const Outcome outcome = Simulate(controller, machine, 2000);
  EXPECT_NEAR(outcome.work_per_step(), 45e3 / 4 / 20, 30);
  EXPECT_LE(outcome.gaps_us.back(), 45e3 + 1.25 * 20e3) << "one piece between two tokens";
}

// As on a GPU, where hardly a piece fits beside steps with such a tail: what is saved up is not spent on pieces that do
// little but read the weights.
TEST(InjectControllerTest, WhatIsMostlyFixedGoesOnInPiecesThatAreWorthIt) {
  std::mt19937 random(11);
  std::normal_distribution<double> noise(0, 0.05);
  const double fixed_us = 9e3, us_per_work = 37;
  const Machine machine{
      .step_us = [&] { return (random() % 25 == 0 ? 14e3 : 10.5e3) * std::exp(noise(random)); },
      .piece_us = [&](double work) { return (fixed_us + us_per_work * work) * std::exp(noise(random)); },
      .least_work = 8};
  InjectController controller(29e3);
  const Outcome outcome = Simulate(controller, machine, 4000);
  // A third of a fifth of the time.
  EXPECT_GE(outcome.work_per_step(), 0.8 * 10.6e3 / 4 / 3 / us_per_work);
  EXPECT_LE(outcome.quantile_us(0.99), 29e3);
}

// Where decodes were alone for long, no prompt finds anything saved up.
TEST(InjectControllerTest, SavesNothingUpWhileNoPromptWaits) {
  InjectController controller(50e3);
  for (int i = 0; i < 1000; ++i) controller.ObserveDecode(45e3, /*prompt_waits=*/false);
  EXPECT_LE(controller.RoomUs(0), 0);
  controller.ObserveDecode(45e3, /*prompt_waits=*/true);
  EXPECT_DOUBLE_EQ(controller.RoomUs(0), 45e3 / 4);
  controller.ObservePrefill(100, 10e3);
  EXPECT_DOUBLE_EQ(controller.RoomUs(10e3), 45e3 / 4 - 10e3);
}

// The least piece of a long context can be far larger than all that was measured.
TEST(InjectControllerTest, TheLeastPieceMayBeLargerThanTwiceTheLargest) {
  InjectController controller(50e3);
  controller.ObserveDecode(10e3, /*prompt_waits=*/true);
  controller.ObservePrefill(16, 32);
  EXPECT_EQ(controller.WorkWithin(controller.RoomUs(0), 16), 32);
  EXPECT_EQ(controller.WorkWithin(controller.RoomUs(0), 500), 500);
}

}  // namespace
}  // namespace winnow
