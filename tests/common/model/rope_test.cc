#include "common/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <tuple>

namespace winnow {
namespace {

// The library works in f32 with fewer than 8 roundings per value; the references below are f64.
constexpr double kRelative = 8 * 0x1p-24;

void ExpectClose(const std::vector<float>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], expected[i] * kRelative) << "pair " << i;
}

// Independent f64 form: each pair's plain frequency theta^(-2i/d), times what `scale(i, frequency)` makes of it.
std::vector<double> Reference(double theta, int head_dim, const std::function<double(int, double)>& scale) {
  std::vector<double> result;
  for (int i = 0; i < head_dim / 2; ++i) {
    const double frequency = std::exp(-2.0 * i / head_dim * std::log(theta));
    result.push_back(frequency * scale(i, frequency));
  }
  return result;
}

// "By parts" in turns per original context, as in the YaRN paper: ramps from 1/factor (few turns) to 1 (many turns).
std::vector<double> Llama3Reference(const RopeConfig& config, int head_dim) {
  return Reference(config.theta, head_dim, [&](int, double frequency) {
    const double turns =
        static_cast<double>(config.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
    const double ramp =
        std::clamp((turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor), 0.0, 1.0);
    return (1 - ramp) / config.factor + ramp;
  });
}

std::vector<double> YarnReference(const RopeConfig& config, int head_dim) {
  const auto pair_with_turns = [&](double turns) {  // solves old * theta^(-2i/d) = 2 pi turns for i
    return std::log(static_cast<double>(config.original_max_position_embeddings) / (2 * std::numbers::pi * turns)) /
           std::log(config.theta) * head_dim / 2;
  };
  double first = pair_with_turns(config.beta_fast);
  double last = pair_with_turns(config.beta_slow);
  if (config.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, head_dim - 1.0);
  return Reference(config.theta, head_dim, [&](int i, double) {
    const double ramp = first == last ? (i > first ? 1.0 : 0.0) : std::clamp((i - first) / (last - first), 0.0, 1.0);
    return 1 - ramp + ramp / config.factor;
  });
}

TEST(RopeTest, DefaultByHand) {
  const RopeTable table = ComputeRope({}, 8);
  ExpectClose(table.inv_freq, {1, 0.1, 0.01, 0.001});
  EXPECT_EQ(table.attention_factor, 1);
}

TEST(RopeTest, LinearDividesEveryFrequency) {
  const RopeTable table = ComputeRope({.type = RopeType::kLinear, .factor = 4}, 8);
  ExpectClose(table.inv_freq, {0.25, 0.025, 0.0025, 0.00025});
  EXPECT_EQ(table.attention_factor, 1);
}

TEST(RopeTest, DynamicIsTheDefaultWithinTheTrainedContext) {
  const RopeTable table = ComputeRope({.type = RopeType::kDynamic, .factor = 4}, 8);
  EXPECT_EQ(table.inv_freq, ComputeRope({}, 8).inv_freq);
  EXPECT_EQ(table.attention_factor, 1);
}

TEST(RopeTest, Llama3ByHand) {
  RopeConfig config{.type = RopeType::kLlama3, .theta = 500000, .factor = 8};
  config.original_max_position_embeddings = 512;
  const RopeTable table = ComputeRope(config, 16);
  ExpectClose(table.inv_freq, {1, 0.193922745, 0.0273441373, 0.000911583092, 0.000176776695, 3.4281022e-05,
                               6.64786987e-06, 1.28917317e-06});
  EXPECT_EQ(table.attention_factor, 1);
}

TEST(RopeTest, YarnByHand) {
  RopeConfig config{.type = RopeType::kYarn, .theta = 10000, .factor = 4};
  config.original_max_position_embeddings = 2048;
  // Pairs 0..2 turn more than 32 times in 2048 positions, pairs 6 and 7 less than once; 3..5 lie on the ramp.
  ExpectClose(ComputeRope(config, 16).inv_freq,
              {1, 0.316227766, 0.1, 0.025693506, 0.00625, 0.00138349648, 0.00025, 7.90569415e-05});
  config.truncate = false;
  ExpectClose(ComputeRope(config, 16).inv_freq,
              {1, 0.316227766, 0.1, 0.0238701923, 0.00505697152, 0.000811290382, 0.00025, 7.90569415e-05});
}

TEST(RopeTest, YarnAttentionFactor) {
  RopeConfig config{.type = RopeType::kYarn, .factor = 4};
  config.original_max_position_embeddings = 2048;
  EXPECT_FLOAT_EQ(ComputeRope(config, 16).attention_factor, 1.138629436f);  // 0.1 ln 4 + 1
  config.factor = 40;
  EXPECT_FLOAT_EQ(ComputeRope(config, 16).attention_factor, 1.368887945f);
  config.mscale = 0.707;
  EXPECT_FLOAT_EQ(ComputeRope(config, 16).attention_factor, 1.368887945f);  // mscale counts only with mscale_all_dim
  config.mscale_all_dim = 1;
  EXPECT_FLOAT_EQ(ComputeRope(config, 16).attention_factor, 0.921042355f);
  config.mscale = 1;
  EXPECT_FLOAT_EQ(ComputeRope(config, 16).attention_factor, 1.0f);
  config.attention_factor = 0.75;
  EXPECT_FLOAT_EQ(ComputeRope(config, 16).attention_factor, 0.75f);
  config.attention_factor.reset();
  config.mscale = config.mscale_all_dim = 0;
  config.factor = 1;
  EXPECT_FLOAT_EQ(ComputeRope(config, 16).attention_factor, 1.0f);
}

// From the LongRoPE paper: each frequency has a divisor of its own, and scores grow with the logarithm of the context.
TEST(RopeTest, LongRopeDividesEachFrequency) {
  RopeConfig config{.type = RopeType::kLongRope, .factor = 32, .original_max_position_embeddings = 4096};
  config.short_factors = {1, 1.05, 1.5, 2};
  config.long_factors = {1.25, 4, 30, 64};
  for (const bool beyond : {false, true}) {
    config.beyond_original = beyond;
    const std::vector<double>& divisors = beyond ? config.long_factors : config.short_factors;
    const RopeTable table = ComputeRope(config, 8);
    ExpectClose(table.inv_freq, Reference(10000, 8, [&](int i, double) { return 1 / divisors[i]; }));
    EXPECT_FLOAT_EQ(table.attention_factor, std::sqrt(1 + 5.0 / 12)) << "32 is 2^5, and 4096 2^12";
  }
  config.factor = 1;
  EXPECT_EQ(ComputeRope(config, 8).attention_factor, 1);
  config.attention_factor = 1.19;
  EXPECT_FLOAT_EQ(ComputeRope(config, 8).attention_factor, 1.19f);
}

// (theta, head_dim, factor, original context) of published models and of odd ones.
using ScalingCase = std::tuple<double, int, double, int64_t>;
class RopeScalingTest : public testing::TestWithParam<ScalingCase> {};

TEST_P(RopeScalingTest, MatchesTheReference) {
  const auto [theta, head_dim, factor, original] = GetParam();
  RopeConfig config{.theta = theta, .factor = factor};
  config.original_max_position_embeddings = original;
  for (const bool truncate : {true, false}) {
    for (const auto& [fast, slow] : {std::pair(32.0, 1.0), std::pair(4.0, 2.0), std::pair(1e6, 1e5)}) {
      config.type = RopeType::kYarn;
      config.truncate = truncate;
      config.beta_fast = fast;
      config.beta_slow = slow;
      const std::vector<float> actual = ComputeRope(config, head_dim).inv_freq;
      // On the ramp one f32 rounding of the ramp (absolute) weighs against a value that may be 1/factor as large.
      const std::vector<double> expected = YarnReference(config, head_dim);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(actual[i], expected[i], expected[i] * kRelative * (1 + factor)) << "pair " << i;
      }
    }
  }
  config.type = RopeType::kLlama3;
  const std::vector<float> actual = ComputeRope(config, head_dim).inv_freq;
  const std::vector<double> expected = Llama3Reference(config, head_dim);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], expected[i] * kRelative * (1 + factor)) << "pair " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RopeScalingTest,
                         testing::Values(ScalingCase{500000, 128, 8, 8192}, ScalingCase{500000, 64, 32, 8192},
                                         ScalingCase{1e6, 128, 4, 32768}, ScalingCase{10000, 64, 16, 4096},
                                         ScalingCase{150000, 64, 32, 4096}, ScalingCase{10000, 2, 2, 128},
                                         ScalingCase{1e7, 96, 1, 1000}));

}  // namespace
}  // namespace winnow
