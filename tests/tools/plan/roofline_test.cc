#include "tools/plan/roofline.h"

#include <gtest/gtest.h>

#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

ModelConfig Qwen14B() {
  return *SyntheticModelConfig("synthetic:qwen3-14b");
}

ModelConfig Qwen32B() {
  return *SyntheticModelConfig("synthetic:qwen3-32b");
}

constexpr GpuRates kH200;
constexpr PlanScorer kAllKeysBf16{.kind = PlanScorer::Kind::kAllKeys, .key_element_bytes = 2};
constexpr PlanScorer kPagesBf16{.kind = PlanScorer::Kind::kPages, .key_element_bytes = 2};
constexpr PlanScorer kTwoStageFp8{.kind = PlanScorer::Kind::kTwoStage, .key_element_bytes = 1};

PlanWorkload Load(double context, double overlap = 0.6) {
  return {.context_tokens = context, .budget_tokens = 2048, .overlap = overlap};
}

// Figures printed with two or three digits agree with half a unit of the last one.
TEST(Roofline, BytesOfQwen14B) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  EXPECT_EQ(model.kv_token_bytes, 163840);
  EXPECT_NEAR(model.step_weight_bytes / 1e9, 27.98, 0.005);
  EXPECT_NEAR(model.weight_bytes / 1e9, 29.5, 0.05);
}

TEST(Roofline, AStepReadsTheExpertsThatItsTokensNeed) {
  const PlanModel model = PlanModelOf(*SyntheticModelConfig("synthetic:qwen3-30b-a3b"), 2, 2);
  EXPECT_NEAR(model.weight_bytes / 1e9, 61.06, 0.05);
  EXPECT_NEAR(StepWeightBytes(model, 1) / 1e9, 2 * 3.03, 0.02) << "3.3 billion are active, less the embedding";
  EXPECT_NEAR(StepWeightBytes(model, 1e6), model.step_weight_bytes + model.expert_bytes, 1);
  // Two tokens with 8 of 128 experts each have 15.5 in all.
  EXPECT_NEAR(StepWeightBytes(model, 2) - model.step_weight_bytes, model.expert_bytes * 15.5 / 128, 1e-6 * 61e9);
}

// DeepSeek V3.2: 61 layers of a row of 512 + 64 elements, and 128 of an index key, which is what is scored.
TEST(Roofline, RowsOfLatentAttentionAreCountedOnce) {
  const char* const json = R"({"architectures": ["DeepseekV32ForCausalLM"], "hidden_size": 7168,
      "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280,
      "max_position_embeddings": 163840, "n_routed_experts": 256, "num_experts_per_tok": 8,
      "moe_intermediate_size": 2048, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
      "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_n_heads": 64, "index_head_dim": 128,
      "index_topk": 2048})";
  const PlanModel model = PlanModelOf(*ParseModelConfig(json, "", "dir"), 1, 2);
  EXPECT_EQ(model.kv_token_bytes, 61 * 704 * 2);
  EXPECT_EQ(ScoredBytes(model, kAllKeysBf16, Load(1000)), 1000.0 * 61 * 128 * 2);
  EXPECT_NEAR(model.weight_bytes / 1e9, 672, 2) << "671 billion, without the layer that predicts a further token";
}

TEST(Roofline, DecodeStep) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  struct Row {
    double batch, dense_32k, dense_128k, sparse;
  };
  for (const Row& row : {Row{1, 6.95, 10.30, 5.90}, Row{8, 14.78, 41.6, 6.39}, Row{16, 23.7, 77.4, 6.95},
                         Row{32, 41.6, 149, 8.07}, Row{64, 77.4, 292, 10.30}}) {
    EXPECT_NEAR(StepSeconds(model, kH200, row.batch, 32768) * 1e3, row.dense_32k, 0.006 * row.dense_32k);
    EXPECT_NEAR(StepSeconds(model, kH200, row.batch, 131072) * 1e3, row.dense_128k, 0.006 * row.dense_128k);
    EXPECT_NEAR(StepSeconds(model, kH200, row.batch, 2048) * 1e3, row.sparse, 0.005);
  }
}

TEST(Roofline, ComputeBindsVeryLargeBatches) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  EXPECT_NEAR(StepSeconds(model, kH200, 4096, 1), 4096 * 2 * model.step_parameters / kH200.flops_per_s, 1e-4);
}

TEST(Roofline, Scoring) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  const auto ms = [&](const PlanScorer& scorer, double context) {
    return ScoringSeconds(model, kH200, scorer, Load(context)) * 1e3;
  };
  EXPECT_NEAR(ms(kAllKeysBf16, 32768), 0.559, 0.0006);
  EXPECT_NEAR(ms({.kind = PlanScorer::Kind::kAllKeys, .key_element_bytes = 1}, 32768), 0.280, 0.0006);
  EXPECT_NEAR(ms({.kind = PlanScorer::Kind::kAllKeys, .key_element_bytes = 0.53125}, 131072), 0.594, 0.0006);
  EXPECT_NEAR(ms(kPagesBf16, 131072), 0.280, 0.0006);
  EXPECT_NEAR(ms(kTwoStageFp8, 32768), 0.105, 0.0006);
  EXPECT_NEAR(ms(kTwoStageFp8, 131072), 0.210, 0.0006);
  // Every key of short contexts, and of longer ones as many as of the smallest number of candidates.
  const PlanScorer all_fp8{.kind = PlanScorer::Kind::kAllKeys, .key_element_bytes = 1};
  EXPECT_EQ(ms(kTwoStageFp8, 30719), ms(all_fp8, 30719));
  EXPECT_LT(ms(kTwoStageFp8, 30720), 0.7 * ms(all_fp8, 30720));
  PlanWorkload small = Load(32768);
  small.budget_tokens = 128;
  EXPECT_EQ(ScoredBytes(model, kTwoStageFp8, small), ScoredBytes(model, kTwoStageFp8, Load(32768)));
}

TEST(Roofline, Transfer) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  EXPECT_NEAR(TransferBytes(model, Load(32768, 0)) / 1e6, 335.5, 0.1);
  EXPECT_NEAR(TransferBytes(model, Load(32768, 0.6)) / kH200.link_bytes_per_s * 1e3, 0.298, 0.001);
}

TEST(Roofline, CacheGpusThatHideSelection) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  const auto ratio = [&](const PlanScorer& scorer, double context, double batch) {
    return Plan(model, kH200, Load(context), {.cache_gpus = 1, .scorer = scorer}, batch).cache_ratio;
  };
  EXPECT_NEAR(ratio(kAllKeysBf16, 32768, 8), 0.70, 0.006);
  EXPECT_NEAR(ratio(kTwoStageFp8, 32768, 64), 0.65, 0.006);
  EXPECT_NEAR(ratio(kTwoStageFp8, 131072, 32), 0.83, 0.006);
  EXPECT_NEAR(ratio(kPagesBf16, 131072, 64), 1.74, 0.006);
}

TEST(Roofline, TokensPerGpuOnEqualHardware) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  const auto plan = [&](PlannedPlacement placement, double context) {
    return Plan(model, kH200, Load(context, 0.9), placement, 0);
  };
  const PlacementPlan dense = plan({.dense = true, .scorer = kAllKeysBf16}, 32768);
  EXPECT_EQ(dense.fits, 20);
  EXPECT_NEAR(dense.tokens_per_s_per_gpu, 709, 1);
  const PlacementPlan pages = plan({.scorer = kPagesBf16}, 32768);
  EXPECT_EQ(pages.fits, 18);
  EXPECT_NEAR(pages.tokens_per_s_per_gpu, 2157, 1);
  const PlacementPlan one = plan({.cache_gpus = 1, .scorer = kTwoStageFp8}, 32768);
  // The rows, a sixteenth of them in page bounds, a quarter in a copy of the keys.
  EXPECT_EQ(one.fits, 20);
  EXPECT_NEAR(one.tokens_per_s_per_gpu, 1384, 1);
  const PlanScorer without_copy{.kind = PlanScorer::Kind::kTwoStage, .key_element_bytes = 2};
  EXPECT_EQ(plan({.cache_gpus = 1, .scorer = without_copy}, 32768).fits, 24);
  EXPECT_NEAR(plan({.cache_gpus = 2, .scorer = kTwoStageFp8}, 32768).tokens_per_s_per_gpu, 1546, 1);
  EXPECT_NEAR(plan({.cache_gpus = 3, .scorer = kTwoStageFp8}, 131072).tokens_per_s_per_gpu, 545, 1);
}

TEST(Roofline, Fp8KvDoublesWhatFits) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 1);
  const PlanScorer pages{.kind = PlanScorer::Kind::kPages, .key_element_bytes = 1};
  EXPECT_NEAR(Plan(model, kH200, Load(32768, 0.9), {.scorer = pages}, 0).tokens_per_s_per_gpu, 4397, 2);
  EXPECT_NEAR(Plan(model, kH200, Load(32768, 0.9), {.cache_gpus = 1, .scorer = kTwoStageFp8}, 0).tokens_per_s_per_gpu,
              3249, 2);
}

TEST(Roofline, LargerModel) {
  const PlanModel model = PlanModelOf(Qwen32B(), 2, 2);
  EXPECT_NEAR(Plan(model, kH200, Load(32768, 0.9), {.scorer = kPagesBf16}, 0).tokens_per_s_per_gpu, 470, 2);
  EXPECT_NEAR(Plan(model, kH200, Load(32768, 0.9), {.cache_gpus = 2, .scorer = kTwoStageFp8}, 0).tokens_per_s_per_gpu,
              516, 2);
}

TEST(Roofline, AModelThatDoesNotFitIsSaidWithTheArithmetic) {
  ModelConfig config = Qwen32B();
  config.num_layers *= 4;
  const PlacementPlan plan =
      Plan(PlanModelOf(config, 2, 2), kH200, Load(32768), {.cache_gpus = 1, .scorer = kTwoStageFp8}, 0);
  EXPECT_EQ(plan.fits, 0);
  EXPECT_EQ(plan.tokens_per_s_per_gpu, 0);
  EXPECT_NE(plan.arithmetic.find("does not fit"), std::string::npos);
}

// 164 GB of KV, of which one GPU holds 142.
TEST(Roofline, ASequenceThatOneCacheGpuDoesNotHoldIsSpreadOverSeveral) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  const PlannedPlacement placement{.name = "", .cache_gpus = 4, .scorer = kTwoStageFp8};
  const std::string of_one = Plan(model, kH200, Load(128 * 1024), placement, 0).arithmetic;
  EXPECT_EQ(of_one.find("--cache-shards"), std::string::npos) << of_one;
  const std::string of_several = Plan(model, kH200, Load(1e6), placement, 0).arithmetic;
  EXPECT_NE(of_several.find("--cache-shards=2, at least"), std::string::npos) << of_several;
}

TEST(Roofline, SmallBudgetsOfSlotsLimitTheBatch) {
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  const PlacementPlan plan = Plan(model, kH200, Load(8192, 0.9), {.cache_gpus = 64, .scorer = kTwoStageFp8}, 0);
  EXPECT_NE(plan.arithmetic.find("working sets limit it"), std::string::npos);
}

}  // namespace
}  // namespace winnow
