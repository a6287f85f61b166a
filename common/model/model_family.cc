#include "common/model/model_family.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace winnow {
namespace {

constexpr FamilyTraits kFamilies[] = {
    {ModelFamily::kLlama, "LlamaForCausalLM", "llama", 2048, 0, false, true, QkNorm::kNone},
    {ModelFamily::kMistral, "MistralForCausalLM", "mistral", 131072, 0, false, true, QkNorm::kNone},
    {ModelFamily::kQwen2, "Qwen2ForCausalLM", "qwen2", 32768, 0, true, false, QkNorm::kNone},
    {ModelFamily::kQwen3, "Qwen3ForCausalLM", "qwen3", 32768, 128, false, true, QkNorm::kHead},
    {.family = ModelFamily::kMixtral,
     .architecture = "MixtralForCausalLM",
     .model_type = "mixtral",
     .default_max_position_embeddings = 131072,
     .moe = MoeFields::kMixtral,
     .default_rms_norm_eps = 1e-5},
    {.family = ModelFamily::kQwen2Moe,
     .architecture = "Qwen2MoeForCausalLM",
     .model_type = "qwen2_moe",
     .default_max_position_embeddings = 32768,
     .qkv_bias = true,
     .moe = MoeFields::kQwen2},
    {.family = ModelFamily::kQwen3Moe,
     .architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .default_max_position_embeddings = 32768,
     .o_bias_follows = true,
     .qk_norm = QkNorm::kHead,
     .moe = MoeFields::kQwen3},
    {.family = ModelFamily::kQwen3Next,
     .architecture = "Qwen3NextForCausalLM",
     .model_type = "qwen3_next",
     .default_max_position_embeddings = 32768,
     .default_head_dim = 256,
     .o_bias_follows = true,
     .qk_norm = QkNorm::kHead,
     .moe = MoeFields::kQwen3Next,
     .partial_rotary = true,
     .default_partial_rotary = 0.25,
     .gated_delta = true},
    {.family = ModelFamily::kQwen35,
     .architecture = "Qwen3_5ForCausalLM",
     .model_type = "qwen3_5_text",
     .default_max_position_embeddings = 32768,
     .default_head_dim = 256,
     .o_bias_follows = true,
     .qk_norm = QkNorm::kHead,
     .partial_rotary = true,
     .default_partial_rotary = 0.25,
     .gated_delta = true},
    {.family = ModelFamily::kQwen35Moe,
     .architecture = "Qwen3_5MoeForCausalLM",
     .model_type = "qwen3_5_moe_text",
     .default_max_position_embeddings = 32768,
     .default_head_dim = 256,
     .o_bias_follows = true,
     .qk_norm = QkNorm::kHead,
     .moe = MoeFields::kQwen35,
     .partial_rotary = true,
     .default_partial_rotary = 0.25,
     .gated_delta = true},
    {.family = ModelFamily::kPhi3,
     .architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .default_max_position_embeddings = 4096,
     .fused_projections = true,
     .default_rms_norm_eps = 1e-5,
     .partial_rotary = true},
    {.family = ModelFamily::kOlmo2,
     .architecture = "Olmo2ForCausalLM",
     .model_type = "olmo2",
     .default_max_position_embeddings = 2048,
     .o_bias_follows = true,
     .qk_norm = QkNorm::kProjection,
     .norms = NormPlacement::kAfter,
     .default_rms_norm_eps = 1e-5},
    {.family = ModelFamily::kOlmo3,
     .architecture = "Olmo3ForCausalLM",
     .model_type = "olmo3",
     .default_max_position_embeddings = 2048,
     .o_bias_follows = true,
     .qk_norm = QkNorm::kProjection,
     .norms = NormPlacement::kAfter,
     .default_rms_norm_eps = 1e-5,
     .window_rope = true},
    {.family = ModelFamily::kGemma2,
     .architecture = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .default_max_position_embeddings = 8192,
     .default_head_dim = 256,
     .o_bias_follows = true,
     .norms = NormPlacement::kBoth,
     .activation = Activation::kGeluTanh},
    {.family = ModelFamily::kGemma3,
     .architecture = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .default_max_position_embeddings = 131072,
     .default_head_dim = 256,
     .o_bias_follows = true,
     .qk_norm = QkNorm::kHead,
     .norms = NormPlacement::kBoth,
     .activation = Activation::kGeluTanh,
     .window_rope = true},
    {.family = ModelFamily::kGptOss,
     .architecture = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .default_max_position_embeddings = 131072,
     .default_head_dim = 64,
     .qkv_bias = true,
     .o_bias_follows = true,
     .moe = MoeFields::kGptOss,
     .activation = Activation::kClampedSilu,
     .default_rms_norm_eps = 1e-5},
    {.family = ModelFamily::kGlm4Moe,
     .architecture = "Glm4MoeForCausalLM",
     .model_type = "glm4_moe",
     .default_max_position_embeddings = 131072,
     .default_head_dim = 128,
     .moe = MoeFields::kDeepseek,
     .default_rms_norm_eps = 1e-5,
     .partial_rotary = true,
     .default_partial_rotary = 0.5},
    {.family = ModelFamily::kDeepseekV2,
     .architecture = "DeepseekV2ForCausalLM",
     .model_type = "deepseek_v2",
     .default_max_position_embeddings = 2048,
     .o_bias_follows = true,
     .moe = MoeFields::kDeepseekV2,
     .latent_attention = true},
    {.family = ModelFamily::kDeepseekV3,
     .architecture = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .default_max_position_embeddings = 4096,
     .o_bias_follows = true,
     .moe = MoeFields::kDeepseek,
     .latent_attention = true},
    {.family = ModelFamily::kDeepseekV32,
     .architecture = "DeepseekV32ForCausalLM",
     .model_type = "deepseek_v32",
     .default_max_position_embeddings = 4096,
     .o_bias_follows = true,
     .moe = MoeFields::kDeepseek,
     .latent_attention = true,
     .indexer = true},
    {.family = ModelFamily::kGlmMoeDsa,
     .architecture = "GlmMoeDsaForCausalLM",
     .model_type = "glm_moe_dsa",
     .default_max_position_embeddings = 202752,
     .o_bias_follows = true,
     .moe = MoeFields::kDeepseek,
     .default_rms_norm_eps = 1e-5,
     .latent_attention = true,
     .indexer = true},
};

const FamilyTraits* Find(std::string_view name, const char* FamilyTraits::*field) {
  for (const FamilyTraits& traits : kFamilies) {
    if (name == traits.*field) return &traits;
  }
  return nullptr;
}

}  // namespace

const char* ModelFamilyName(ModelFamily family) {
  for (const FamilyTraits& traits : kFamilies) {
    if (traits.family == family) return traits.architecture;
  }
  return "unknown";
}

const FamilyTraits* FamilyOfArchitecture(std::string_view architecture) {
  return Find(architecture, &FamilyTraits::architecture);
}

const FamilyTraits* FamilyOfModelType(std::string_view model_type) {
  return Find(model_type, &FamilyTraits::model_type);
}

std::string SupportedArchitectures() {
  std::string names;
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : i + 1 == std::size(kFamilies) ? " and " : ", ", kFamilies[i].architecture);
  }
  return names;
}

}  // namespace winnow
