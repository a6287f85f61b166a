#include "cmd/query_drift.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/model/rope.h"
#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

TEST(QueryBias, IsAsStrongAsAskedAndStillFromStepToStep) {
  const ModelConfig config = *SyntheticModelConfig("synthetic:qwen3-0.6b");
  const std::vector<float> bias = QueryBias(config, 3, 1);
  ASSERT_EQ(bias.size(), static_cast<size_t>(config.num_layers) * config.q_features());
  const RopeTable rope = ComputeRope(config.rope, config.head_dim);
  const int half = config.head_dim / 2;
  for (size_t head = 0; head < bias.size() / config.head_dim; ++head) {
    double square = 0, turned = 0;
    for (int d = 0; d < config.head_dim; ++d) {
      const double value = bias[head * config.head_dim + d];
      square += value * value;
      turned += value * value * std::cos(rope.inv_freq[d % half]);
    }
    EXPECT_NEAR(std::sqrt(square / config.head_dim), 3, 1e-4);
    EXPECT_GT(turned / square, 0.995) << "cosine of a direction at one position and at the next";
  }
}

TEST(QueryBias, DiffersFromHeadToHeadAndBySeed) {
  const ModelConfig config = *SyntheticModelConfig("synthetic:qwen3-0.6b");
  const std::vector<float> bias = QueryBias(config, 1, 1);
  EXPECT_NE(std::vector<float>(bias.begin(), bias.begin() + config.head_dim),
            std::vector<float>(bias.begin() + config.head_dim, bias.begin() + 2 * config.head_dim));
  EXPECT_EQ(bias, QueryBias(config, 1, 1));
  EXPECT_NE(bias, QueryBias(config, 1, 2));
}

TEST(MeanOverlap, CountsWhatBothHoldListByList) {
  // Lists of 3, the first 2 used. List 0: {1, 2} and {2, 7}; list 1: {4, 5} and {5, 4}. The 9s are not looked at, and
  // 4 of list 1 does not count for list 0.
  const std::vector<uint32_t> before = {1, 2, 9, 4, 5, 9}, now = {2, 7, 9, 5, 4, 9};
  EXPECT_DOUBLE_EQ(MeanOverlap(before, now, 3, 2, 10), 0.75);
  EXPECT_DOUBLE_EQ(MeanOverlap(before, before, 3, 2, 10), 1);
  EXPECT_DOUBLE_EQ(MeanOverlap({1, 2}, {3, 4}, 2, 2, 10), 0);
}

}  // namespace
}  // namespace winnow
