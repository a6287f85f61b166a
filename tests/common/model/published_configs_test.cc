// Fields of config.json as published models of each family have them: read without a word about ignored ones, and each
// field that changes what a model computes is either honoured or refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/model/model_config.h"
#include "common/model/rope.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// What nearly all of them have.
json Config(const char* architecture, const char* model_type, const char* fields) {
  json config = {{"architectures", {architecture}},
                 {"model_type", model_type},
                 {"attention_dropout", 0.0},
                 {"bos_token_id", 0},
                 {"eos_token_id", {1, 2}},
                 {"hidden_act", "silu"},
                 {"initializer_range", 0.02},
                 {"tie_word_embeddings", false},
                 {"torch_dtype", "bfloat16"},
                 {"transformers_version", "4.57.1"},
                 {"use_cache", true},
                 {"rope_theta", 1000000.0},
                 {"rms_norm_eps", 1e-6},
                 {"rope_scaling", nullptr},
                 {"pad_token_id", 0},
                 {"max_position_embeddings", 131072},
                 {"quantization_config", nullptr}};
  config.update(json::parse(fields));
  return config;
}

json Llama33() {
  return Config("LlamaForCausalLM", "llama", R"({"attention_bias":false,"head_dim":128,"hidden_size":8192,
    "intermediate_size":28672,"mlp_bias":false,"num_attention_heads":64,"num_hidden_layers":80,"num_key_value_heads":8,
    "pretraining_tp":1,"vocab_size":128256,"rope_scaling":{"factor":8.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
    "original_max_position_embeddings":8192,"rope_type":"llama3"}})");
}
json MistralNemo() {
  return Config("MistralForCausalLM", "mistral", R"({"head_dim":128,"hidden_size":5120,"intermediate_size":14336,
    "num_attention_heads":32,"num_hidden_layers":40,"num_key_value_heads":8,"sliding_window":null,
    "vocab_size":131072})");
}
json Mixtral() {
  return Config("MixtralForCausalLM", "mixtral", R"({"hidden_size":4096,"intermediate_size":14336,
    "num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,"num_key_value_heads":8,
    "num_local_experts":8,"output_router_logits":false,"router_aux_loss_coef":0.02,"router_jitter_noise":0.0,
    "sliding_window":null,"vocab_size":32000})");
}
json Qwen2Moe() {
  return Config("Qwen2MoeForCausalLM", "qwen2_moe", R"({"decoder_sparse_step":1,"hidden_size":2048,
    "intermediate_size":5632,"max_window_layers":21,"mlp_only_layers":[],"moe_intermediate_size":1408,
    "norm_topk_prob":false,"num_attention_heads":16,"num_experts":60,"num_experts_per_tok":4,"num_hidden_layers":24,
    "num_key_value_heads":16,"output_router_logits":false,"router_aux_loss_coef":0.001,"qkv_bias":true,
    "shared_expert_intermediate_size":5632,"sliding_window":32768,"use_sliding_window":false,"vocab_size":151936})");
}
json Qwen3Moe() {
  return Config("Qwen3MoeForCausalLM", "qwen3_moe", R"({"attention_bias":false,"decoder_sparse_step":1,"head_dim":128,
    "hidden_size":2048,"intermediate_size":6144,"max_window_layers":48,"mlp_only_layers":[],
    "moe_intermediate_size":768,"norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,
    "num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":4,"output_router_logits":false,
    "router_aux_loss_coef":0.001,"sliding_window":null,"use_sliding_window":false,"vocab_size":151936})");
}
json Qwen3Next() {
  return Config("Qwen3NextForCausalLM", "qwen3_next", R"({"attention_bias":false,"decoder_sparse_step":1,
    "full_attention_interval":4,"head_dim":256,"hidden_size":2048,"intermediate_size":5120,"linear_conv_kernel_dim":4,
    "linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_value_head_dim":128,
    "mlp_only_layers":[],"moe_intermediate_size":512,"norm_topk_prob":true,"num_attention_heads":16,"num_experts":512,
    "num_experts_per_tok":10,"num_hidden_layers":48,"num_key_value_heads":2,"output_router_logits":false,
    "partial_rotary_factor":0.25,"rope_theta":10000000,"router_aux_loss_coef":0.001,
    "shared_expert_intermediate_size":512,"use_sliding_window":false,"vocab_size":151936})");
}
json Qwen35() {
  json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                 {"model_type", "qwen3_5"},
                 {"image_token_id", 248056},
                 {"video_token_id", 248057},
                 {"vision_start_token_id", 248053},
                 {"vision_end_token_id", 248054},
                 {"tie_word_embeddings", false},
                 {"vision_config", json::object()}};
  config["text_config"] = Config("Qwen3_5ForCausalLM", "qwen3_5_text", R"({"attention_bias":false,
    "attn_output_gate":true,"dtype":"bfloat16","full_attention_interval":4,"head_dim":256,"hidden_size":4096,
    "intermediate_size":12288,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_num_key_heads":16,
    "linear_num_value_heads":32,"linear_value_head_dim":128,"mamba_ssm_dtype":"float32","mtp_num_hidden_layers":1,
    "mtp_use_dedicated_embeddings":false,"num_attention_heads":16,"num_hidden_layers":32,"num_key_value_heads":4,
    "partial_rotary_factor":0.25,"vocab_size":248320,"rope_parameters":{"mrope_interleaved":true,
    "mrope_section":[11,11,10],"rope_type":"default","rope_theta":10000000,"partial_rotary_factor":0.25}})");
  config["text_config"].erase("architectures");
  for (const char* field : {"rope_theta", "rope_scaling"}) config["text_config"].erase(field);
  for (int layer = 0; layer < 32; ++layer) {
    config["text_config"]["layer_types"].push_back(layer % 4 == 3 ? "full_attention" : "linear_attention");
  }
  return config;
}
json Qwen35Moe() {
  json config = Qwen35();
  config["architectures"] = {"Qwen3_5MoeForConditionalGeneration"};
  config["model_type"] = "qwen3_5_moe";
  json& text = config["text_config"];
  text.erase("intermediate_size");
  text.update({{"model_type", "qwen3_5_moe_text"},
               {"moe_intermediate_size", 512},
               {"num_experts", 256},
               {"num_experts_per_tok", 8},
               {"output_router_logits", false},
               {"router_aux_loss_coef", 0.001},
               {"shared_expert_intermediate_size", 512}});
  return config;
}
json GptOss() {
  json config = Config("GptOssForCausalLM", "gpt_oss", R"({"attention_bias":true,"experts_per_token":4,"head_dim":64,
    "hidden_size":2880,"initial_context_length":4096,"intermediate_size":2880,"num_attention_heads":64,
    "num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":8,"num_local_experts":32,
    "output_router_logits":false,"router_aux_loss_coef":0.9,"rope_theta":150000,"sliding_window":128,
    "swiglu_limit":7.0,"vocab_size":201088,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,
    "original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},"quantization_config":{
    "modules_to_not_convert":["model.layers.*.self_attn","model.layers.*.mlp.router","model.embed_tokens","lm_head"],
    "quant_method":"mxfp4"}})");
  for (int layer = 0; layer < 24; ++layer) {
    config["layer_types"].push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  return config;
}
json Glm4Moe() {
  return Config("Glm4MoeForCausalLM", "glm4_moe", R"({"attention_bias":true,"head_dim":128,"hidden_size":4096,
    "partial_rotary_factor":0.5,"intermediate_size":10944,"moe_intermediate_size":1408,"norm_topk_prob":true,
    "num_attention_heads":96,"n_group":1,"topk_group":1,"n_routed_experts":128,"n_shared_experts":1,
    "routed_scaling_factor":1.0,"num_experts_per_tok":8,"first_k_dense_replace":1,"num_hidden_layers":46,
    "num_key_value_heads":8,"num_nextn_predict_layers":1,"use_qk_norm":false,"vocab_size":151552})");
}
json DeepseekV2Lite() {
  return Config("DeepseekV2ForCausalLM", "deepseek_v2", R"({"attention_bias":false,"auto_map":{},"aux_loss_alpha":0.001,
    "first_k_dense_replace":1,"hidden_size":2048,"intermediate_size":10944,"kv_lora_rank":512,
    "moe_intermediate_size":1408,"moe_layer_freq":1,"n_group":1,"n_routed_experts":64,"n_shared_experts":2,
    "norm_topk_prob":false,"num_attention_heads":16,"num_experts_per_tok":6,"num_hidden_layers":27,
    "num_key_value_heads":16,"pretraining_tp":1,"q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,
    "rope_theta":10000,"routed_scaling_factor":1.0,"scoring_func":"softmax","seq_aux":true,"topk_group":1,
    "topk_method":"greedy","v_head_dim":128,"vocab_size":102400,"rope_scaling":{"beta_fast":32,"beta_slow":1,
    "factor":40,"mscale":0.707,"mscale_all_dim":0.707,"original_max_position_embeddings":4096,"type":"yarn"}})");
}
json DeepseekV3() {
  return Config("DeepseekV3ForCausalLM", "deepseek_v3", R"({"attention_bias":false,"auto_map":{},"aux_loss_alpha":0.001,
    "ep_size":1,"first_k_dense_replace":3,"hidden_size":7168,"intermediate_size":18432,"kv_lora_rank":512,
    "max_position_embeddings":163840,"moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":8,
    "n_routed_experts":256,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":128,
    "num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":128,"num_nextn_predict_layers":1,
    "pretraining_tp":1,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rope_theta":10000,
    "routed_scaling_factor":2.5,"scoring_func":"sigmoid","seq_aux":true,"topk_group":4,"topk_method":"noaux_tc",
    "v_head_dim":128,"vocab_size":129280,"rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,
    "mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"},"quantization_config":{
    "activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","scale_fmt":"ue8m0",
    "weight_block_size":[128,128]}})");
}
json DeepseekV32() {
  json config = DeepseekV3();
  config.update({{"architectures", {"DeepseekV32ForCausalLM"}},
                 {"model_type", "deepseek_v32"},
                 {"index_head_dim", 128},
                 {"index_n_heads", 64},
                 {"index_topk", 2048}});
  return config;
}
json KimiK2() {
  json config = DeepseekV3();
  config.update(json::parse(R"({"model_type":"kimi_k2","first_k_dense_replace":1,"n_group":1,"topk_group":1,
    "n_routed_experts":384,"num_attention_heads":64,"num_key_value_heads":64,"routed_scaling_factor":2.827,
    "num_nextn_predict_layers":0,"vocab_size":163840})"));
  return config;
}
json Gemma3() {
  return Config("Gemma3ForCausalLM", "gemma3_text", R"({"attention_bias":false,"attn_logit_softcapping":null,
    "final_logit_softcapping":null,"head_dim":256,"hidden_act":null,"hidden_activation":"gelu_pytorch_tanh",
    "hidden_size":1152,"intermediate_size":6912,"num_attention_heads":4,"num_hidden_layers":26,
    "num_key_value_heads":1,"query_pre_attn_scalar":256,"rope_local_base_freq":10000,"sliding_window":512,
    "sliding_window_pattern":6,"tie_word_embeddings":true,"vocab_size":262144})");
}
json Gemma2() {
  return Config("Gemma2ForCausalLM", "gemma2", R"({"attention_bias":false,"attn_logit_softcapping":50.0,
    "final_logit_softcapping":30.0,"head_dim":256,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh",
    "hidden_size":2304,"intermediate_size":9216,"num_attention_heads":8,"num_hidden_layers":26,
    "num_key_value_heads":4,"query_pre_attn_scalar":256,"sliding_window":4096,
    "tie_word_embeddings":true,"cache_implementation":"hybrid","vocab_size":256000})");
}
json Olmo2() {
  return Config("Olmo2ForCausalLM", "olmo2", R"({"attention_bias":false,"hidden_size":4096,"intermediate_size":11008,
    "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"rope_theta":500000,
    "vocab_size":100352})");
}
json Olmo3() {
  return Config("Olmo3ForCausalLM", "olmo3", R"({"attention_bias":false,"hidden_size":4096,"intermediate_size":11008,
    "max_position_embeddings":65536,"num_attention_heads":32,"num_hidden_layers":8,"num_key_value_heads":32,
    "rope_theta":500000,"sliding_window":4096,"vocab_size":100278,"layer_types":["sliding_attention",
    "sliding_attention","sliding_attention","full_attention","sliding_attention","sliding_attention",
    "sliding_attention","full_attention"],"rope_scaling":{"attention_factor":1.2079441541679836,"beta_fast":32,
    "beta_slow":1,"factor":8.0,"original_max_position_embeddings":8192,"rope_type":"yarn"}})");
}
// `pairs` that turn of each head.
json Phi(const char* fields, int pairs) {
  json config = Config("Phi3ForCausalLM", "phi3", R"({"attention_bias":false,"auto_map":{},"embd_pdrop":0.0,
    "hidden_size":3072,"intermediate_size":8192,"num_attention_heads":32,"original_max_position_embeddings":4096,
    "resid_pdrop":0.0,"rope_theta":10000.0,"sliding_window":262144,"vocab_size":32064})");
  config.update(json::parse(fields));
  config["rope_scaling"] = {{"type", "longrope"},
                            {"short_factor", std::vector<double>(static_cast<size_t>(pairs), 1.05)},
                            {"long_factor", std::vector<double>(static_cast<size_t>(pairs), 9.5)}};
  return config;
}
json Phi3() {
  return Phi(R"({"num_hidden_layers":32,"num_key_value_heads":32})", 48);
}
json Phi4Mini() {
  return Phi(R"({"num_hidden_layers":32,"num_key_value_heads":8,"num_attention_heads":24,"partial_rotary_factor":0.75,
    "full_attn_mod":1,"interpolate_factor":1,"lm_head_bias":false,"mlp_bias":false,"tie_word_embeddings":true,
    "vocab_size":200064})",
             48);
}

json With(json config, const json& changes) {
  config.update(changes);
  return config;
}
absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "", "dir");
}

TEST(PublishedConfigsTest, AreReadAndNoFieldIsIgnored) {
  for (const json& config :
       {Llama33(),   MistralNemo(), Mixtral(), Qwen2Moe(),       Qwen3Moe(),   Qwen3Next(),   Qwen35(),
        Qwen35Moe(), GptOss(),      Glm4Moe(), DeepseekV2Lite(), DeepseekV3(), DeepseekV32(), KimiK2(),
        Gemma2(),    Gemma3(),      Olmo2(),   Olmo3(),          Phi3(),       Phi4Mini()}) {
    const absl::StatusOr<ModelConfig> parsed = Parse(config);
    ASSERT_THAT(parsed, IsOkStatus()) << config.at("model_type");
    EXPECT_THAT(parsed->warnings, testing::Each(testing::Not(HasSubstr("ignored")))) << config.at("model_type");
  }
}

// A field whose value shows in what is computed.
struct Honoured {
  const char* name;
  json config;
  json changes;
  std::function<double(const ModelConfig&)> computed;
  double before, after;
};
void PrintTo(const Honoured& value, std::ostream* out) {
  *out << value.name;
}
class HonouredFieldTest : public testing::TestWithParam<Honoured> {};

TEST_P(HonouredFieldTest, ChangesWhatIsComputed) {
  const auto before = Parse(GetParam().config), after = Parse(With(GetParam().config, GetParam().changes));
  ASSERT_THAT(before, IsOkStatus());
  ASSERT_THAT(after, IsOkStatus());
  EXPECT_NEAR(GetParam().computed(*before), GetParam().before, 1e-4 * std::abs(GetParam().before));
  EXPECT_NEAR(GetParam().computed(*after), GetParam().after, 1e-4 * std::abs(GetParam().after));
}

double Theta(const ModelConfig& config) {
  return config.rope.theta;
}
double Windows(const ModelConfig& config) {
  return static_cast<double>(
      std::count_if(config.windows.begin(), config.windows.end(), [](uint32_t w) { return w > 0; }));
}
// Of the slowest pair that turns.
double LastFrequency(const ModelConfig& config) {
  return ComputeRope(config.rope, config.rotary_dim).inv_freq.back();
}
double AttentionFactor(const ModelConfig& config) {
  return ComputeRope(config.rope, config.rotary_dim).attention_factor;
}
double SparseLayers(const ModelConfig& config) {
  return config.moe.num_sparse_layers();
}
json Scaling(const char* type, double factor) {
  return {{"rope_scaling", {{"rope_type", type}, {"factor", factor}}}};
}

INSTANTIATE_TEST_SUITE_P(
    All, HonouredFieldTest,
    testing::Values(
        Honoured{"RopeTheta", MistralNemo(), {{"rope_theta", 5e5}}, Theta, 1e6, 5e5},
        Honoured{"NormEpsilon",
                 Qwen3Moe(),
                 {{"rms_norm_eps", 1e-5}},
                 [](const ModelConfig& c) { return double{c.rms_norm_eps}; },
                 1e-6,
                 1e-5},
        Honoured{"Linear", MistralNemo(), Scaling("linear", 4),
                 [](const ModelConfig& c) { return ComputeRope(c.rope, 128).inv_freq[0]; }, 1, 0.25},
        Honoured{"YarnScores", Qwen3Moe(), Scaling("yarn", 4), AttentionFactor, 1, 0.1 * std::log(4.0) + 1},
        Honoured{"YarnContext", Qwen3Moe(), Scaling("yarn", 4),
                 [](const ModelConfig& c) { return static_cast<double>(c.max_context_tokens); }, 131072, 524288},
        Honoured{
            "LongRopeScores", Phi3(), {{"max_position_embeddings", 4096}}, AttentionFactor, std::sqrt(1 + 5.0 / 12), 1},
        Honoured{"LongRopeLength",
                 Phi3(),
                 {{"max_position_embeddings", 4096}},
                 [](const ModelConfig& c) { return 1 / ComputeRope(c.rope, 96).inv_freq[0]; },
                 9.5,
                 1.05},
        Honoured{"GlmPartialRotary",
                 Glm4Moe(),
                 {{"partial_rotary_factor", 0.25}},
                 [](const ModelConfig& c) { return static_cast<double>(c.rotary_dim); },
                 64,
                 32},
        Honoured{"WindowsOfMistral", MistralNemo(), {{"sliding_window", 4096}}, Windows, 0, 40},
        Honoured{"WindowsByLayer",
                 Qwen3Moe(),
                 {{"num_hidden_layers", 2},
                  {"sliding_window", 64},
                  {"layer_types", {"full_attention", "sliding_attention"}}},
                 Windows,
                 0,
                 1},
        Honoured{"GemmaPattern", Gemma3(), {{"sliding_window_pattern", 2}}, Windows, 22, 13},
        Honoured{"GemmaQueryScale",
                 Gemma3(),
                 {{"query_pre_attn_scalar", 64}},
                 [](const ModelConfig& c) { return double{c.attention_scale}; },
                 1 / 16.0,
                 1 / 8.0},
        Honoured{"GemmaLocalBase",
                 Gemma3(),
                 {{"rope_local_base_freq", 5000}},
                 [](const ModelConfig& c) { return c.rope_of(0).theta; },
                 1e4,
                 5e3},
        Honoured{"Gemma2AttentionSoftcap",
                 Gemma2(),
                 {{"attn_logit_softcapping", nullptr}},
                 [](const ModelConfig& c) { return double{c.attention_softcap}; },
                 50,
                 0},
        Honoured{"Gemma2Windows",
                 Gemma2(),
                 {{"layer_types", json::array({"full_attention"})}, {"num_hidden_layers", 1}},
                 Windows,
                 13,
                 0},
        Honoured{"GemmaSoftcap",
                 Gemma3(),
                 {{"final_logit_softcapping", 30.0}},
                 [](const ModelConfig& c) { return double{c.final_logit_softcap}; },
                 0,
                 30},
        Honoured{"OlmoScalesFullLayersAlone",
                 Olmo3(),
                 {{"rope_scaling", nullptr}},
                 [](const ModelConfig& c) { return LastFrequency(c) / ComputeRope(c.rope_of(0), 128).inv_freq.back(); },
                 1 / 8.0,
                 1},
        Honoured{"OlmoWindowBase",
                 Olmo3(),
                 {{"rope_theta", 1e5}},
                 [](const ModelConfig& c) { return c.rope_of(0).theta; },
                 5e5,
                 1e5},
        Honoured{"NormalisedExperts",
                 Qwen2Moe(),
                 {{"norm_topk_prob", true}},
                 [](const ModelConfig& c) { return int{c.moe.normalizes}; },
                 0,
                 1},
        Honoured{"SharedExpert",
                 Qwen2Moe(),
                 {{"shared_expert_intermediate_size", 64}},
                 [](const ModelConfig& c) { return static_cast<double>(c.mlp_features(0)); },
                 5632,
                 64},
        Honoured{"SparseStep", Qwen3Moe(), {{"decoder_sparse_step", 2}}, SparseLayers, 48, 24},
        Honoured{"DenseLayers", Qwen3Moe(), {{"mlp_only_layers", {0, 7}}}, SparseLayers, 48, 46},
        Honoured{"DenseFirst", DeepseekV3(), {{"first_k_dense_replace", 5}}, SparseLayers, 58, 56},
        Honoured{"RoutedScale",
                 Glm4Moe(),
                 {{"routed_scaling_factor", 2.5}},
                 [](const ModelConfig& c) { return double{c.moe.scale}; },
                 1,
                 2.5},
        Honoured{"Groups",
                 DeepseekV3(),
                 {{"topk_group", 3}},
                 [](const ModelConfig& c) { return static_cast<double>(c.moe.groups_per_token); },
                 4,
                 3},
        Honoured{"GroupsOfV2",
                 DeepseekV2Lite(),
                 {{"topk_method", "group_limited_greedy"}, {"n_group", 8}, {"topk_group", 3}},
                 [](const ModelConfig& c) { return static_cast<double>(c.moe.groups * 10 + c.moe.group_scores); },
                 12,
                 81},
        Honoured{"LatentScoresOfYarn",
                 DeepseekV2Lite(),
                 {{"rope_scaling", nullptr}},
                 [](const ModelConfig& c) { return c.attention_scale * std::sqrt(192.0); },
                 std::pow(0.0707 * std::log(40.0) + 1, 2),
                 1},
        Honoured{"IndexTopK",
                 DeepseekV32(),
                 {{"index_topk", 512}},
                 [](const ModelConfig& c) { return static_cast<double>(c.latent->indexer.top_k); },
                 2048,
                 512},
        Honoured{
            "GlmNorms", Glm4Moe(), {{"use_qk_norm", true}}, [](const ModelConfig& c) { return int{c.qk_norm}; }, 0, 1},
        Honoured{"ExpertsPerTokenByItsOtherName",
                 With(GptOss(), {{"num_experts_per_tok", nullptr}}),
                 {{"experts_per_token", 2}},
                 [](const ModelConfig& c) { return static_cast<double>(c.moe.experts_per_token); },
                 4,
                 2},
        Honoured{"Tied",
                 Llama33(),
                 {{"tie_word_embeddings", true}},
                 [](const ModelConfig& c) { return int{c.tie_word_embeddings}; },
                 0,
                 1},
        Honoured{"Biases",
                 Llama33(),
                 {{"attention_bias", true}, {"mlp_bias", true}},
                 [](const ModelConfig& c) { return int{c.qkv_bias} + c.o_bias + c.mlp_bias; },
                 0,
                 3}),
    [](const auto& info) { return std::string(info.param.name); });

// A value that changes what is computed in a way that is not built.
struct Refused {
  json config;
  const char* field;
  json value;
  std::string message = field;
};

TEST(PublishedConfigsTest, WhatIsNotBuiltIsRefusedByName) {
  const Refused all[] = {
      {Llama33(), "hidden_act", "gelu"},
      {Llama33(), "partial_rotary_factor", 0.5},
      {Llama33(), "logits_scaling", 8.0},
      {Llama33(), "embedding_multiplier", 12},
      {Llama33(), "residual_multiplier", 0.22},
      {Llama33(), "attention_multiplier", 0.015625},
      {Llama33(), "no_rope_layers", {1, 1, 0}},
      {Llama33(), "attention_chunk_size", 8192},
      {Llama33(), "attn_temperature_tuning", true},
      {Llama33(), "kv_lora_rank", 512},
      {Llama33(), "num_local_experts", 16},
      {Llama33(), "rope_ratio", 50},
      {Llama33(), "clip_qkv", 8.0},
      {MistralNemo(),
       "rope_parameters",
       {{"rope_type", "yarn"}, {"factor", 16.0}, {"llama_4_scaling_beta", 0.1}},
       "rope_parameters.llama_4_scaling_beta is 0.1"},
      {MistralNemo(), "vision_config", json::object()},
      {Mixtral(), "routed_scaling_factor", 2.5},
      {Mixtral(), "scoring_func", "sigmoid"},
      {Qwen3Moe(), "dual_chunk_attention_config", {{"chunk_size", 262144}}},
      {Qwen3Moe(), "shared_expert_intermediate_size", 512},
      {Qwen3Moe(), "attn_output_gate", true},
      {With(Qwen3Moe(), {{"sliding_window", 4096}}), "use_sliding_window", true,
       "use_sliding_window is true, which is supported for"},
      {With(Qwen2Moe(), {{"sliding_window", 4096}}), "use_sliding_window", true,
       "use_sliding_window is true, which is supported for"},
      {GptOss(), "swiglu_limit", 10.0, "swiglu_limit is 10; only 7"},
      {GptOss(), "swiglu_alpha", 1.5},
      {GptOss(), "hidden_size", 2890, "hidden_size is 2890; with MXFP4 it must be a multiple of 32"},
      {Qwen3Moe(),
       "quantization_config",
       {{"quant_method", "mxfp4"}},
       "quantization_config.quant_method is 'mxfp4', which is supported for Gpt"},
      {Qwen3Moe(),
       "quantization_config",
       {{"quant_method", "bitsandbytes"}},
       "quantization_config.quant_method is 'bitsandbytes'"},
      {DeepseekV3(),
       "quantization_config",
       {{"quant_method", "fp8"}, {"fmt", "e5m2"}},
       "quantization_config.fmt is 'e5m2'"},
      {Glm4Moe(), "scoring_func", "softmax"},
      {DeepseekV2Lite(), "norm_topk_prob", true},
      {DeepseekV2Lite(), "topk_method", "noaux_tc"},
      {DeepseekV2Lite(), "scoring_func", "sigmoid"},
      {DeepseekV3(), "topk_method", "greedy"},
      {DeepseekV3(), "moe_layer_freq", 2},
      {DeepseekV3(), "index_topk", 2048},
      {DeepseekV32(), "indexer_types", json::array({"full"}), "indexer_types has 1 entries for 61 layers"},
      {Gemma3(), "attn_logit_softcapping", 50.0},
      {Gemma3(), "attn_logit_softcapping", 1.0},
      {Gemma3(), "use_bidirectional_attention", true},
      {Gemma3(), "text_config", json::object()},
      {Olmo2(), "final_logit_softcapping", 30.0},
      {Olmo3(), "sliding_window", nullptr, "sliding_window is missing"},
      {Phi3(), "lm_head_bias", true},
      {Phi3(), "partial_rotary_factor", 0.5, "rope_scaling.short_factor has 48 entries for 24 pairs"},
      {Phi4Mini(), "interpolate_factor", 4},
      {Phi4Mini(), "full_attn_mod", 2},
      {Phi4Mini(), "architectures", {"PhiMoEForCausalLM"}},
      {Gemma3(), "architectures", {"GemmaForCausalLM"}},
      {Gemma2(), "attn_logit_softcapping", 0.0, "attn_logit_softcapping must be above 0"},
      {Gemma2(), "rope_local_base_freq", 5000},
      {Llama33(), "attn_logit_softcapping", 50.0},
  };
  for (const Refused& refused : all) {
    EXPECT_THAT(Parse(With(refused.config, {{refused.field, refused.value}})),
                FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("dir/config.json: " + refused.message)))
        << refused.value;
  }
}

}  // namespace
}  // namespace winnow
