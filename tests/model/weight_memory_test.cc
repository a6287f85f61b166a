#include "model/weights/weight_memory.h"

#include <gtest/gtest.h>


namespace winnow {
namespace {

ModelConfig Shape() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_query_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 100;
  return config;
}

TEST(WeightMemoryTest, ByHand) {
  const WeightMemory memory = ComputeWeightMemory(Shape(), Dtype::kBf16, Dtype::kF32);
  EXPECT_EQ(memory.qkv_bytes, 2u * 192 * 64 * 2);  // 128 + 32 + 32 outputs are 3 panels
  EXPECT_EQ(memory.query_projection_bytes, 0u);    // 128 rows are 2 whole panels
  EXPECT_EQ(memory.o_bytes, 2u * 64 * 128 * 2);
  EXPECT_EQ(memory.gate_up_bytes, 2u * 192 * 64 * 2);
  EXPECT_EQ(memory.down_bytes, 2u * 64 * 96 * 2);
  EXPECT_EQ(memory.lm_head_bytes, 128u * 64 * 2);  // 100 outputs take 2 panels
  EXPECT_EQ(memory.norm_and_bias_bytes, (2u * 2 * 64 + 64) * 4);
  EXPECT_EQ(memory.embedding_bytes, 100u * 64 * 4);
  EXPECT_EQ(memory.total_bytes(), memory.packed_bytes() + 1280 + 25600);
}

TEST(WeightMemoryTest, BiasesNormsAndQueryRows) {
  ModelConfig config = Shape();
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  EXPECT_EQ(ComputeWeightMemory(config, Dtype::kF32, Dtype::kF32).norm_and_bias_bytes,
            (2u * (2 * 64 + 2 * 16 + 192 + 64 + 2 * 96 + 64) + 64) * 4);
  config.num_query_heads = 6;  // 96 rows are one panel and a half
  EXPECT_FALSE(QueryRowsAreWholePanels(config));
  EXPECT_EQ(ComputeWeightMemory(config, Dtype::kF32, Dtype::kF32).query_projection_bytes, 2u * 128 * 64 * 4);
}

TEST(WeightMemoryTest, ExpertsOfSparseLayers) {
  ModelConfig config = Shape();
  config.moe = {.num_experts = 4, .experts_per_token = 2, .intermediate_size = 32, .sparse_layers = {false, true}};
  const WeightMemory memory = ComputeWeightMemory(config, Dtype::kBf16, Dtype::kF32);
  EXPECT_EQ(memory.gate_up_bytes, 192u * 64 * 2) << "of the dense layer";
  EXPECT_EQ(memory.expert_bytes, 4u * (64 * 64 + 64 * 32) * 2 + 64 * 64 * 4) << "and an f32 router of one panel";
  config.moe.shared_intermediate_size = 96;
  EXPECT_EQ(ComputeWeightMemory(config, Dtype::kBf16, Dtype::kF32).gate_up_bytes, 2u * 192 * 64 * 2);
}

TEST(WeightMemoryTest, AQwen3Of14BillionTakesTwoBytesAParameter) {
  ModelConfig config;
  config.num_layers = 40;
  config.hidden_size = 5120;
  config.intermediate_size = 17408;
  config.num_query_heads = 40;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 151936;
  config.qk_norm = true;
  const double parameters = 14.768e9;
  const WeightMemory memory = ComputeWeightMemory(config, Dtype::kBf16, Dtype::kBf16);
  EXPECT_NEAR(static_cast<double>(memory.total_bytes()), 2 * parameters, 0.001 * 2 * parameters);
  EXPECT_NE(memory.ToString().find("gate and up 13600.0"), std::string::npos) << memory.ToString();
}

}  // namespace
}  // namespace winnow
