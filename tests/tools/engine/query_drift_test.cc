#include "tools/engine/query_drift.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/model/rope.h"
#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

// Mean cosine of the heads' directions at one position and at one `positions` later.
double CosineAfter(const ModelConfig& config, const std::vector<float>& bias, int positions) {
  const RopeTable rope = ComputeRope(config.rope, config.head_dim);
  const int half = config.head_dim / 2;
  double square = 0, turned = 0;
  for (size_t i = 0; i < bias.size(); ++i) {
    const double value = bias[i];
    square += value * value;
    turned += value * value * std::cos(positions * rope.inv_freq[i % config.head_dim % half]);
  }
  return turned / square;
}

TEST(QueryBias, IsAsStrongAsAsked) {
  const ModelConfig config = *SyntheticModelConfig("synthetic:qwen3-0.6b");
  const std::vector<float> bias = QueryBias(config, 3, 1);
  ASSERT_EQ(bias.size(), static_cast<size_t>(config.num_layers) * config.q_features());
  for (size_t head = 0; head < bias.size() / config.head_dim; ++head) {
    double square = 0;
    for (int d = 0; d < config.head_dim; ++d) square += std::pow(bias[head * config.head_dim + d], 2);
    EXPECT_NEAR(std::sqrt(square / config.head_dim), 3, 1e-4);
  }
}

TEST(QueryBias, DriftsWithinAPoolsLifeButNotAtOnce) {
  const ModelConfig config = *SyntheticModelConfig("synthetic:qwen3-0.6b");
  const std::vector<float> bias = QueryBias(config, 1, 1);
  EXPECT_GT(CosineAfter(config, bias, 1), 0.95);
  EXPECT_LT(CosineAfter(config, bias, 4), 0.8);
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
  // Lists of at most 3. List 0: {1, 2} and {2, 7}; list 1: {4, 5} and {5, 4}. The 9s are not looked at, and 4 of list 1
  // does not count for list 0.
  const SelectedLists before{3, {1, 2, 9, 4, 5, 9}, {2, 2}}, now{3, {2, 7, 9, 5, 4, 9}, {2, 2}};
  EXPECT_DOUBLE_EQ(MeanOverlap(before, now, 10), 0.75);
  EXPECT_DOUBLE_EQ(MeanOverlap(before, before, 10), 1);
  EXPECT_DOUBLE_EQ(MeanOverlap({2, {1, 2}, {2}}, {2, {3, 4}, {2}}, 10), 0);
}

TEST(MeanOverlap, ListsMayHaveAnyNumberOfEntries) {
  const SelectedLists before{3, {1, 9, 9, 4, 5, 6}, {1, 3}}, now{3, {9, 9, 9, 4, 5, 9}, {0, 2}};
  EXPECT_DOUBLE_EQ(MeanOverlap(before, now, 10), 1);
  EXPECT_DOUBLE_EQ(MeanOverlap(now, before, 10), 0.5);
}

}  // namespace
}  // namespace winnow
