#include "tools/plan/dense_below.h"

#include <gtest/gtest.h>

#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

uint32_t DenseBelow(const ModelConfig& config, const DeviceRates& rates) {
  return DenseBelowTokens(PlanModelOf(config, 2, 2), config.num_layers, rates);
}

TEST(DenseBelow, IsWhereReadingTakesAsLongAsFinding) {
  ModelConfig config = ModelConfigOf("synthetic:qwen3-8b").value();
  EXPECT_EQ(DenseBelow(config, {}), kMostDenseTokens) << "58k by itself";
  config.num_kv_heads = 32;  // four times the rows
  EXPECT_EQ(DenseBelow(config, {}), 14336u);
  EXPECT_EQ(DenseBelow(config, {.memory_bytes_per_s = 2.4e12}), 7168u);
  config.num_layers /= 2;
  EXPECT_EQ(DenseBelow(config, {.memory_bytes_per_s = 2.4e12}), 7168u) << "layers cost both alike";
}

}  // namespace
}  // namespace winnow
