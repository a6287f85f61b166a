#include "common/model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

json Minimal(const char* architecture, const char* model_type) {
  return {{"architectures", {architecture}},
          {"model_type", model_type},
          {"hidden_size", 64},
          {"intermediate_size", 160},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"vocab_size", 512},
          {"max_position_embeddings", 4096}};
}
json Llama() {
  return Minimal("LlamaForCausalLM", "llama");
}
json Mistral() {
  return Minimal("MistralForCausalLM", "mistral");
}
json Qwen2() {
  return Minimal("Qwen2ForCausalLM", "qwen2");
}
json Qwen3() {
  return Minimal("Qwen3ForCausalLM", "qwen3");
}

json Mixtral() {
  json config = Minimal("MixtralForCausalLM", "mixtral");
  config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  return config;
}
json Qwen3Moe() {
  json config = Minimal("Qwen3MoeForCausalLM", "qwen3_moe");
  config.update({{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 48}});
  return config;
}

json Gemma3() {
  json config = Minimal("Gemma3ForCausalLM", "gemma3_text");
  config.update({{"hidden_activation", "gelu_pytorch_tanh"},
                 {"sliding_window", 512},
                 {"sliding_window_pattern", 3},
                 {"query_pre_attn_scalar", 256},
                 {"rope_local_base_freq", 5000.0},
                 {"rope_theta", 1e6},
                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  return config;
}
json DeepseekV32() {
  json config = Minimal("DeepseekV32ForCausalLM", "deepseek_v32");
  config.update({{"n_routed_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 48},
                 {"n_shared_experts", 2},
                 {"n_group", 2},
                 {"topk_group", 1},
                 {"routed_scaling_factor", 2.5},
                 {"first_k_dense_replace", 1},
                 {"q_lora_rank", 40},
                 {"kv_lora_rank", 32},
                 {"qk_nope_head_dim", 24},
                 {"qk_rope_head_dim", 16},
                 {"v_head_dim", 20},
                 {"index_n_heads", 4},
                 {"index_head_dim", 32},
                 {"index_topk", 64}});
  return config;
}

json GptOss() {
  json config = Minimal("GptOssForCausalLM", "gpt_oss");
  config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"sliding_window", 128}});
  return config;
}

json With(json config, const char* field, json value) {
  config[field] = std::move(value);
  return config;
}
json Without(json config, const char* field) {
  config.erase(field);
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config, const char* generation = "") {
  return ParseModelConfig(config.dump(), generation, "dir");
}

TEST(ModelConfigTest, LlamaDefaults) {
  const auto config = Parse(Llama());
  ASSERT_THAT(config, IsOkStatus());
  EXPECT_EQ(config->family, ModelFamily::kLlama);
  EXPECT_EQ(config->num_layers, 3);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->intermediate_size, 160);
  EXPECT_EQ(config->num_query_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->vocab_size, 512);
  EXPECT_EQ(config->rms_norm_eps, 1e-6f);
  EXPECT_FALSE(config->qkv_bias || config->o_bias || config->mlp_bias || config->qk_norm ||
               config->tie_word_embeddings);
  EXPECT_EQ(config->rope, RopeConfig{});
  EXPECT_EQ(config->max_context_tokens, 4096);
  EXPECT_THAT(config->eos_token_ids, IsEmpty());
  EXPECT_EQ(config->bos_token_id, std::nullopt);
  EXPECT_THAT(config->warnings, IsEmpty());
  EXPECT_EQ(config->qkv_features(), 192);
  EXPECT_EQ(config->kv_layout(Dtype::kBf16).token_bytes(), 3u * 4 * 2 * 16 * 2);
}

TEST(ModelConfigTest, FamiliesDifferInBiasNormAndHeadDim) {
  EXPECT_TRUE(Parse(Qwen2())->qkv_bias);
  EXPECT_FALSE(Parse(Qwen2())->o_bias);
  EXPECT_FALSE(Parse(With(Qwen2(), "attention_bias", false))->qkv_bias);
  EXPECT_FALSE(Parse(Qwen2())->qk_norm);
  EXPECT_TRUE(Parse(Qwen3())->qk_norm);
  EXPECT_FALSE(Parse(Qwen3())->qkv_bias);
  EXPECT_EQ(Parse(Qwen3())->head_dim, 128);
  EXPECT_EQ(Parse(With(Qwen3(), "head_dim", 32))->head_dim, 32);
  const ModelConfig biased = Parse(With(With(Llama(), "attention_bias", true), "mlp_bias", true)).value();
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  EXPECT_TRUE(Parse(With(Qwen2(), "tie_word_embeddings", true))->tie_word_embeddings);
}

TEST(ModelConfigTest, ExpertsByFamily) {
  const MoeConfig mixtral = Parse(Mixtral())->moe;
  EXPECT_EQ(mixtral.num_experts, 4);
  EXPECT_EQ(mixtral.intermediate_size, 160) << "its experts are as wide as the whole config says";
  EXPECT_TRUE(mixtral.normalizes);
  EXPECT_EQ(mixtral.num_sparse_layers(), 3);
  const MoeConfig qwen = Parse(Qwen3Moe())->moe;
  EXPECT_EQ(qwen.intermediate_size, 48);
  EXPECT_FALSE(qwen.normalizes);
  EXPECT_TRUE(Parse(With(Qwen3Moe(), "norm_topk_prob", true))->moe.normalizes);
  EXPECT_EQ(Parse(Qwen3())->moe.num_experts, 0);

  const ModelConfig some = Parse(With(With(Qwen3Moe(), "decoder_sparse_step", 2), "num_hidden_layers", 5)).value();
  EXPECT_THAT(some.moe.sparse_layers, ElementsAre(false, true, false, true, false));
  EXPECT_EQ(some.mlp_features(0), 160);
  EXPECT_EQ(some.mlp_features(1), 0);
  EXPECT_EQ(some.active_mlp_weights(), 3 * 64 * (3 * 160 + 2 * 2 * 48));
  EXPECT_THAT(Parse(With(Qwen3Moe(), "mlp_only_layers", {1}))->moe.sparse_layers, ElementsAre(true, false, true));
}

TEST(ModelConfigTest, TheModelTypeStandsInForMissingArchitectures) {
  EXPECT_EQ(Parse(Without(Qwen3(), "architectures"))->family, ModelFamily::kQwen3);
  EXPECT_EQ(Parse(With(Mistral(), "architectures", nullptr))->family, ModelFamily::kMistral);
}

TEST(ModelConfigTest, NullMeansTheDefault) {
  const auto config =
      Parse(With(With(With(Llama(), "num_key_value_heads", nullptr), "head_dim", nullptr), "rope_scaling", nullptr));
  ASSERT_THAT(config, IsOkStatus());
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
}

TEST(ModelConfigTest, TokensComeAsOneOrAList) {
  EXPECT_THAT(Parse(With(Llama(), "eos_token_id", 2))->eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parse(With(Llama(), "eos_token_id", {2, 5}))->eos_token_ids, ElementsAre(2, 5));
  EXPECT_EQ(Parse(With(Llama(), "bos_token_id", 1))->bos_token_id, 1u);
  const auto outside = Parse(With(Llama(), "eos_token_id", {2, 512, -1}));
  ASSERT_THAT(outside, IsOkStatus());
  EXPECT_THAT(outside->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(outside->warnings.size(), 2u);
}

TEST(ModelConfigTest, TheGenerationConfigOverridesTokens) {
  const json base = With(With(Llama(), "eos_token_id", 2), "bos_token_id", 1);
  EXPECT_THAT(Parse(base, R"({"eos_token_id":[7,8]})")->eos_token_ids, ElementsAre(7, 8));
  EXPECT_EQ(Parse(base, R"({"eos_token_id":[7,8]})")->bos_token_id, 1u);
  EXPECT_THAT(Parse(base, R"({"eos_token_id":null,"bos_token_id":3})")->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(Parse(base, R"({"bos_token_id":3})")->bos_token_id, 3u);
  EXPECT_THAT(Parse(base, R"({"eos_token_id":"x"})"),
              FailsWith(kInvalid, HasSubstr("dir/generation_config.json: eos_token_id must be a token id")));
  EXPECT_THAT(Parse(base, "[]"), FailsWith(kInvalid, HasSubstr("dir/generation_config.json: must be a JSON object")));
}

TEST(ModelConfigTest, SlidingWindowsByLayer) {
  const auto windows = [](const json& config) { return Parse(config)->windows; };
  EXPECT_THAT(windows(With(Mistral(), "sliding_window", nullptr)), IsEmpty());
  EXPECT_THAT(windows(With(Mistral(), "sliding_window", 8192)), IsEmpty()) << "no context outgrows it";
  EXPECT_THAT(windows(With(Mistral(), "sliding_window", 1024)), ElementsAre(1024, 1024, 1024));
  EXPECT_EQ(Parse(With(Mistral(), "sliding_window", 1024))->max_context_tokens, 4096);

  const json qwen = With(Qwen2(), "sliding_window", 1024);
  EXPECT_THAT(windows(qwen), IsEmpty());
  EXPECT_THAT(windows(With(qwen, "use_sliding_window", false)), IsEmpty());
  EXPECT_THAT(windows(With(With(qwen, "use_sliding_window", true), "max_window_layers", 3)), IsEmpty());
  EXPECT_THAT(windows(With(With(qwen, "use_sliding_window", true), "max_window_layers", 2)), ElementsAre(0, 0, 1024));
  EXPECT_THAT(windows(With(qwen, "layer_types", {"full_attention", "full_attention", "full_attention"})), IsEmpty());
  EXPECT_THAT(windows(With(qwen, "layer_types", {"sliding_attention", "full_attention", "sliding_attention"})),
              ElementsAre(1024, 0, 1024));
  EXPECT_THAT(windows(With(Llama(), "sliding_window", 1024)), IsEmpty());
  EXPECT_THAT(windows(GptOss()), ElementsAre(128, 0, 128));
}

TEST(ModelConfigTest, GemmaHasNormsScalesAndRopeOfItsOwn) {
  const auto gemma = Parse(Gemma3());
  ASSERT_THAT(gemma, IsOkStatus());
  EXPECT_THAT(gemma->warnings, IsEmpty());
  EXPECT_TRUE(gemma->norms_add_one && gemma->qk_norm && gemma->tie_word_embeddings);
  EXPECT_EQ(gemma->norms, NormPlacement::kBoth);
  EXPECT_EQ(gemma->embedding_scale, 8);
  EXPECT_EQ(gemma->attention_scale, 0.0625f);
  EXPECT_EQ(gemma->head_dim, 256);
  EXPECT_THAT(gemma->windows, ElementsAre(512, 512, 0));
  EXPECT_EQ(gemma->rope_of(0).theta, 5000);
  EXPECT_EQ(gemma->rope_of(2).theta, 1e6);
  EXPECT_EQ(gemma->rope_of(2).factor, 8);
  EXPECT_EQ(Parse(With(Gemma3(), "sliding_window", 5000))->rope_of(0).theta, 5000) << "however wide its window";
  json newer = Without(Without(Without(Gemma3(), "rope_local_base_freq"), "rope_theta"), "rope_scaling");
  newer["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5000.0}}}};
  EXPECT_EQ(Parse(newer)->rope_of(0), gemma->rope_of(0));
  EXPECT_EQ(Parse(newer)->rope_of(2), gemma->rope_of(2));
}

TEST(ModelConfigTest, RopeScalingAndTheContext) {
  const auto yarn = Parse(
      With(Qwen2(), "rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}}));
  ASSERT_THAT(yarn, IsOkStatus());
  EXPECT_EQ(yarn->max_context_tokens, 16384);
  const auto dynamic = Parse(With(Llama(), "rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}));
  ASSERT_THAT(dynamic, IsOkStatus());
  EXPECT_EQ(dynamic->max_context_tokens, 4096);
  EXPECT_THAT(dynamic->warnings, Contains(HasSubstr("dynamic RoPE")));
}

TEST(ModelConfigTest, WarnsOfUnknownFieldsOnly) {
  const auto config = Parse(With(With(With(Llama(), "my_note", 2), "use_cache", true), "torch_dtype", "bfloat16"));
  ASSERT_THAT(config, IsOkStatus());
  EXPECT_THAT(config->warnings, ElementsAre("config.json: 'my_note' is ignored"));
}

TEST(ModelConfig, LatentAttentionIsOneKvHeadOfLatentAndTurningPart) {
  const absl::StatusOr<ModelConfig> config = Parse(DeepseekV32());
  ASSERT_THAT(config, IsOkStatus());
  EXPECT_EQ(config->num_kv_heads, 1);
  EXPECT_EQ(config->head_dim, 48);
  EXPECT_EQ(config->rotary_dim, 16);
  EXPECT_FLOAT_EQ(config->attention_scale, 1 / std::sqrt(40.0f));
  EXPECT_EQ(config->o_features(), config->num_query_heads * 20);
  EXPECT_EQ(config->qkv_features(), 40 + 48);
  const KvLayout layout = config->kv_layout(Dtype::kBf16);
  EXPECT_EQ(layout.row_bytes(), 2u * (48 + 32)) << "the value is not stored again";
  EXPECT_EQ(layout.index_query_floats(), 4u * 33);
  EXPECT_EQ(config->moe.shared_intermediate_size, 96);
  EXPECT_EQ(config->moe.num_sparse_layers(), config->num_layers - 1);
  EXPECT_THAT(config->warnings, testing::IsEmpty());
}

TEST(ModelConfig, YarnOfLatentAttentionScalesScores) {
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 40.0},
                     {"mscale", 1.0},
                     {"mscale_all_dim", 1.0},
                     {"original_max_position_embeddings", 4096}};
  const absl::StatusOr<ModelConfig> config = Parse(With(DeepseekV32(), "rope_scaling", yarn));
  ASSERT_THAT(config, IsOkStatus());
  const float mscale = 0.1f * std::log(40.0f) + 1;
  EXPECT_FLOAT_EQ(config->attention_scale, mscale * mscale / std::sqrt(40.0f));
}

struct Refused {
  const char* name;
  json config;
  const char* message;
};
class RefusedConfigTest : public testing::TestWithParam<Refused> {};

TEST_P(RefusedConfigTest, NamesFileAndField) {
  EXPECT_THAT(Parse(GetParam().config),
              FailsWith(kInvalid, AllOf(HasSubstr("dir/config.json: "), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedConfigTest,
    testing::Values(
        Refused{"Architecture", With(Llama(), "architectures", {"GemmaForCausalLM"}),
                "architectures is 'GemmaForCausalLM'; supported"},
        Refused{"NoArchitecture", Without(Without(Llama(), "architectures"), "model_type"), "architectures is missing"},
        Refused{"ModelTypeOnly", With(Without(Llama(), "architectures"), "model_type", "gpt2"), "model_type is 'gpt2'"},
        Refused{"Contradiction", With(Llama(), "model_type", "qwen2"),
                "model_type is 'qwen2', which does not belong to Llama"},
        Refused{"ArchitectureType", With(Llama(), "architectures", "LlamaForCausalLM"),
                "architectures must be an array, not string"},
        Refused{"ArchitectureElement", With(Llama(), "architectures", {1}), "architectures must hold strings"},
        Refused{"Experts", With(Qwen3(), "num_experts", 8),
                "num_experts is set, and Qwen3ForCausalLM is no mixture of experts"},
        Refused{"NoExperts", Without(Mixtral(), "num_local_experts"), "num_experts is missing"},
        Refused{"MoreExpertsThanThereAre", With(Mixtral(), "num_experts_per_tok", 5),
                "num_experts_per_tok is 5, more than the 4 experts"},
        Refused{"ExpertWidth", Without(Qwen3Moe(), "moe_intermediate_size"), "moe_intermediate_size is missing"},
        Refused{"DenseLayer", With(Qwen3Moe(), "mlp_only_layers", {3}), "mlp_only_layers must hold layers from 0 to 2"},
        Refused{"OtherArithmetic", With(Llama(), "logit_scale", 2), "logit_scale is 2, which is not supported"},
        Refused{"GemmaFieldElsewhere", With(Llama(), "final_logit_softcapping", 30.0),
                "final_logit_softcapping is 30.0, which is not supported for LlamaForCausalLM"},
        Refused{"AttentionSoftcap", With(Gemma3(), "attn_logit_softcapping", 50.0), "attn_logit_softcapping is 50.0"},
        Refused{"GemmaActivation", With(Gemma3(), "hidden_activation", "silu"),
                "hidden_activation is 'silu'; only gelu_pytorch_tanh"},
        Refused{"SwigluLimit", With(GptOss(), "swiglu_limit", 5.0), "swiglu_limit is 5; only 7"},
        Refused{"LatentElsewhere", With(Llama(), "kv_lora_rank", 512),
                "kv_lora_rank is 512, which is not supported for LlamaForCausalLM"},
        Refused{"IndexerOfOneLayerForOthers", With(DeepseekV32(), "indexer_types", {"full", "shared", "full"}),
                "indexer_types holds \"shared\"; only full is supported"},
        Refused{"IndexerWithoutLatentOfQueries", With(DeepseekV32(), "q_lora_rank", nullptr), "q_lora_rank is missing"},
        Refused{"OddLatent", With(DeepseekV32(), "kv_lora_rank", 33), "kv_lora_rank is 33; it must be even"},
        Refused{"WideLatent", With(DeepseekV32(), "kv_lora_rank", 1020), "are 1036 together; at most 1024"},
        Refused{"ExpertGroups", With(DeepseekV32(), "n_group", 3), "n_group is 3, which does not divide the 8 experts"},
        Refused{"ExpertsOutOfReach", With(DeepseekV32(), "num_experts_per_tok", 5), "topk_group is 1 of 2 groups"},
        Refused{"OtherRouting", With(DeepseekV32(), "scoring_func", "softmax"),
                "scoring_func is 'softmax'; only sigmoid"},
        Refused{"Quantized", With(Llama(), "quantization_config", {{"bits", 4}}),
                "quantization_config.quant_method is missing; supported are fp8"},
        Refused{"Multimodal", With(Llama(), "vision_config", json::object()), "vision_config is set"},
        Refused{"PartialRotary", With(Llama(), "partial_rotary_factor", 0.5), "partial_rotary_factor is 0.5"},
        Refused{"RopeType", With(Llama(), "rope_scaling", {{"rope_type", "ntk"}}), "rope_scaling.rope_type is 'ntk'"},
        Refused{"RopeByLayerType",
                With(Llama(), "rope_parameters", {{"sliding_attention", {{"rope_type", "default"}}}}),
                "rope_parameters.sliding_attention sets RoPE by layer type"},
        Refused{"Activation", With(Llama(), "hidden_act", "gelu"), "hidden_act is 'gelu'; only silu"},
        Refused{"MissingWidth", Without(Llama(), "hidden_size"), "hidden_size is missing"},
        Refused{"WidthString", With(Llama(), "hidden_size", "64"), "hidden_size must be an integer, not string"},
        Refused{"WidthFloat", With(Llama(), "hidden_size", 64.0), "hidden_size must be an integer"},
        Refused{"WidthNegative", With(Llama(), "hidden_size", -64), "hidden_size is -64, outside the supported range"},
        Refused{"LayersHuge", With(Llama(), "num_hidden_layers", 18446744073709551615u), "num_hidden_layers is"},
        Refused{"VocabHuge", With(Llama(), "vocab_size", (1 << 24) + 1), "vocab_size is 16777217"},
        Refused{"KvHeads", With(Llama(), "num_key_value_heads", 3), "num_key_value_heads is 3, which does not divide"},
        Refused{"KvHeadsZero", With(Llama(), "num_key_value_heads", 0), "num_key_value_heads is 0"},
        Refused{"HeadDimOdd", With(Llama(), "head_dim", 15), "head_dim is 15; it must be even"},
        Refused{"HeadDimHuge", With(Llama(), "head_dim", 1024), "head_dim is 1024"},
        Refused{"HeadDimUnclear", With(Llama(), "num_attention_heads", 6), "head_dim is missing, and hidden_size 64"},
        Refused{"Eps", With(Llama(), "rms_norm_eps", -1), "rms_norm_eps must be between"},
        Refused{"EpsType", With(Llama(), "rms_norm_eps", "1e-6"), "rms_norm_eps must be a number, not string"},
        Refused{"BiasType", With(Llama(), "attention_bias", 1), "attention_bias must be true or false, not number"},
        Refused{"TieType", With(Llama(), "tie_word_embeddings", "yes"), "tie_word_embeddings must be true or false"},
        Refused{"EosType", With(Llama(), "eos_token_id", "</s>"), "eos_token_id must be a token id"},
        Refused{"EosElement", With(Llama(), "eos_token_id", {2, 2.5}), "eos_token_id must be a token id"},
        Refused{"BosList", With(Llama(), "bos_token_id", {1, 2}), "bos_token_id must be one token id"},
        Refused{"LayerTypesLength", With(Qwen3(), "layer_types", {"full_attention"}),
                "layer_types has 1 entries for 3 layers"},
        Refused{"LayerTypesValue",
                With(Qwen3(), "layer_types", {"full_attention", "full_attention", "linear_attention"}),
                "layer_types may hold only"},
        Refused{"Window", With(Mistral(), "sliding_window", "4096"), "sliding_window must be an integer"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ModelConfigTest, MalformedJsonNamesTheFile) {
  for (const char* text : {"", "{", "[1]", "{\"a\":1}}", "\xff"}) {
    EXPECT_THAT(ParseModelConfig(text, "", "dir"), FailsWith(kInvalid, HasSubstr("dir/config.json: "))) << text;
  }
  EXPECT_THAT(ParseModelConfig("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "", "dir"),
              FailsWith(kInvalid, HasSubstr("nested deeper than 64")));
}

TEST(ModelConfigTest, LoadsADirectory) {
  const TempDir dir;
  EXPECT_THAT(LoadModelConfig(dir.path()),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr(dir.path() + "/config.json")));
  dir.Write("config.json", With(Llama(), "eos_token_id", 2).dump());
  EXPECT_THAT(LoadModelConfig(dir.path())->eos_token_ids, ElementsAre(2));
  dir.Write("generation_config.json", R"({"eos_token_id":3})");
  EXPECT_THAT(LoadModelConfig(dir.path())->eos_token_ids, ElementsAre(3));
}

}  // namespace
}  // namespace winnow
