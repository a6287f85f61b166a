#include "tools/plan/roofline.h"

#include <gtest/gtest.h>

#include "common/model/synthetic_models.h"
#include "common/selection/presets.h"

namespace winnow {
namespace {

ModelConfig Qwen14B() {
  return *SyntheticModelConfig("synthetic:qwen3-14b");
}

const DeviceRates kH200;
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
  // Groups of pages leave out what is more than they may hold.
  PlanScorer by_groups = kTwoStageFp8;
  by_groups.group_candidate_tokens = 65536;
  EXPECT_EQ(ms(by_groups, 65536), ms(kTwoStageFp8, 65536));
  EXPECT_NEAR(ms(by_groups, 131072), 0.149, 0.0006);
  EXPECT_NEAR(ms(by_groups, 1048576), 0.210, 0.0006);
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

// Of gpt-oss and its like every other layer attends to a window: 128 of its tokens, whatever the context.
TEST(Roofline, LayersWithAWindowReadAndSelectNoMore) {
  ModelConfig config = Qwen14B();
  for (int layer = 0; layer < config.num_layers; ++layer) config.windows.push_back(layer % 2 == 0 ? 128 : 0);
  const PlanModel model = PlanModelOf(config, 2, 2), whole = PlanModelOf(Qwen14B(), 2, 2);
  EXPECT_EQ(AttendedTokens(model, 2048, 32768), (2048 + 128) / 2.0);
  EXPECT_EQ(AttendedTokens(model, 32768, 32768), (32768 + 128) / 2.0);
  EXPECT_EQ(AttendedTokens(model, 64, 64), 64) << "a context within the window";
  EXPECT_EQ(ScoredBytes(model, kAllKeysBf16, Load(1000)), ScoredBytes(whole, kAllKeysBf16, Load(1000)) / 2);
  EXPECT_EQ(TransferBytes(model, Load(32768)), TransferBytes(whole, Load(32768)) / 2);
}

TEST(Roofline, ASpecificationSaysWhatIsScored) {
  const SelectionSpec winnow = *FindPreset("winnow"), quest = *FindPreset("quest");
  EXPECT_EQ(ScorerOf(winnow, 2).kind, PlanScorer::Kind::kTwoStage);
  EXPECT_EQ(ScorerOf(winnow, 2).key_element_bytes, 1) << "its 8-bit copy";
  EXPECT_EQ(ScorerOf(quest, 2).kind, PlanScorer::Kind::kPages);
  EXPECT_EQ(ScorerOf(quest, 2).key_element_bytes, 2);
  const PlanModel model = PlanModelOf(Qwen14B(), 2, 2);
  EXPECT_EQ(ScoredBytes(model, ScorerOf(*FindPreset("dense"), 2), Load(32768)), 0);
  EXPECT_EQ(ScoredBytes(model, ScorerOf(*FindPreset("fixed"), 2), Load(32768)), 0);
}

}  // namespace
}  // namespace winnow
