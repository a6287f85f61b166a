#include "common/model/unsupported_fields.h"

#include <algorithm>
#include <span>

#include "common/base/status.h"

namespace winnow {

namespace {

using Built = bool (*)(const FamilyTraits&);
constexpr Built kNever = [](const FamilyTraits&) { return false; };
constexpr Built kGemma2 = [](const FamilyTraits& of) { return of.family == ModelFamily::kGemma2; };
constexpr Built kGemma3 = [](const FamilyTraits& of) { return of.family == ModelFamily::kGemma3; };
constexpr Built kGemma = [](const FamilyTraits& of) { return kGemma2(of) || kGemma3(of); };
constexpr Built kDeepseekMoe = [](const FamilyTraits& of) {
  return of.moe == MoeFields::kDeepseek || of.moe == MoeFields::kDeepseekV2;
};
constexpr Built kSharedExpert = [](const FamilyTraits& of) {
  return of.moe == MoeFields::kQwen2 || of.moe == MoeFields::kQwen3Next || of.moe == MoeFields::kQwen35;
};
constexpr Built kQwenMoe = [](const FamilyTraits& of) {
  return of.moe == MoeFields::kQwen2 || of.moe == MoeFields::kQwen3 || of.moe == MoeFields::kQwen3Next;
};
constexpr Built kGptOss = [](const FamilyTraits& of) { return of.moe == MoeFields::kGptOss; };
constexpr Built kLatent = [](const FamilyTraits& of) { return of.latent_attention; };
constexpr Built kIndexer = [](const FamilyTraits& of) { return of.indexer; };
constexpr Built kGatedDelta = [](const FamilyTraits& of) { return of.gated_delta; };
constexpr Built kGlm4 = [](const FamilyTraits& of) { return of.family == ModelFamily::kGlm4Moe; };

// What a field says when it changes nothing.
enum class Neutral : uint8_t { kNone, kZero, kOne };

struct Field {
  const char* name;
  Built built = kNever;  // by which families it is read
  Neutral neutral = Neutral::kNone;
};

// Scores and logits.
constexpr Field kScoreFields[] = {{"attn_logit_softcapping", kGemma2},
                                  {"final_logit_softcapping", kGemma},
                                  {"query_pre_attn_scalar", kGemma},
                                  {"use_bidirectional_attention"},
                                  {"logit_scale", kNever, Neutral::kOne},
                                  {"logits_scaling", kNever, Neutral::kOne},
                                  {"output_multiplier_scale", kNever, Neutral::kOne},
                                  {"attention_multiplier"},
                                  {"attn_temperature_tuning"},
                                  {"attn_scale"},
                                  {"attn_output_gate", kGatedDelta},
                                  {"use_attention_sinks"},
                                  {"attention_chunk_size"},
                                  {"dual_chunk_attention_config"},
                                  {"sparse_attention_config"},
                                  {"full_attn_mod", kNever, Neutral::kOne},
                                  {"alibi"},
                                  {"lm_head_bias"}};
// The residual stream and norms.
constexpr Field kResidualFields[] = {{"embedding_multiplier", kNever, Neutral::kOne},
                                     {"residual_multiplier", kNever, Neutral::kOne},
                                     {"scale_emb", kNever, Neutral::kOne},
                                     {"scale_depth"},
                                     {"dim_model_base"},
                                     {"clip_qkv"},
                                     {"use_qk_norm", kGlm4},
                                     {"qk_layernorm"},
                                     {"use_parallel_residual"},
                                     {"parallel_attn"},
                                     {"use_post_norm"},
                                     {"cross_layer_sharing"},
                                     {"num_kv_shared_layers", kNever, Neutral::kZero},
                                     {"hidden_size_per_layer_input", kNever, Neutral::kZero}};
// Positions.
constexpr Field kPositionFields[] = {{"rope_local_base_freq", kGemma3},
                                     {"rotary_dim"},
                                     {"rotary_pct", kNever, Neutral::kOne},
                                     {"rope_pct", kNever, Neutral::kOne},
                                     {"rope_ratio", kNever, Neutral::kOne},
                                     {"interpolate_factor", kNever, Neutral::kOne},
                                     {"no_rope_layers"},
                                     {"no_rope_layer_interval", kNever, Neutral::kZero},
                                     {"kv_lora_rank", kLatent},
                                     {"q_lora_rank", kLatent},
                                     {"index_topk", kIndexer}};
// Experts.
constexpr Field kExpertFields[] = {{"n_group", kDeepseekMoe, Neutral::kOne},
                                   {"topk_group", kDeepseekMoe, Neutral::kOne},
                                   {"routed_scaling_factor", kDeepseekMoe, Neutral::kOne},
                                   {"moe_routed_scaling_factor", kNever, Neutral::kOne},
                                   {"scoring_func", kDeepseekMoe},
                                   {"topk_method", kDeepseekMoe},
                                   {"n_shared_experts", kDeepseekMoe, Neutral::kZero},
                                   {"num_shared_experts", kNever, Neutral::kZero},
                                   {"shared_expert_intermediate_size", kSharedExpert, Neutral::kZero},
                                   {"first_k_dense_replace", kDeepseekMoe, Neutral::kZero},
                                   {"mlp_layer_types", kDeepseekMoe},
                                   {"decoder_sparse_step", kQwenMoe, Neutral::kOne},
                                   {"interleave_moe_layer_step", kNever, Neutral::kOne},
                                   {"moe_layer_freq", kNever, Neutral::kOne},
                                   {"swiglu_limit", kGptOss},
                                   {"swiglu_alpha"}};

bool ChangesNothing(const nlohmann::json& value, Neutral neutral) {
  if (value == false) return true;
  return (neutral == Neutral::kZero && value == 0) || (neutral == Neutral::kOne && value == 1);
}

absl::Status RefuseSetFields(const JsonFields& config, const FamilyTraits& family, std::span<const Field> fields) {
  for (const Field& field : fields) {
    if (!config.Has(field.name) || field.built(family)) continue;
    const nlohmann::json& value = config.object()[field.name];
    if (ChangesNothing(value, field.neutral)) continue;
    return config.Error(field.name, absl::StrCat("is ", value.dump().substr(0, 60), ", which is not supported for ",
                                                 family.architecture));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseOtherArithmetic(const JsonFields& config, const FamilyTraits& family) {
  WINNOW_RETURN_IF_ERROR(RefuseSetFields(config, family, kScoreFields));
  WINNOW_RETURN_IF_ERROR(RefuseSetFields(config, family, kResidualFields));
  WINNOW_RETURN_IF_ERROR(RefuseSetFields(config, family, kPositionFields));
  WINNOW_RETURN_IF_ERROR(RefuseSetFields(config, family, kExpertFields));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> limit, config.Number("swiglu_limit"));
  if (limit.has_value() && *limit != 7) {
    return config.Error("swiglu_limit", absl::StrCat("is ", *limit, "; only 7 is supported"));
  }
  // Qwen's mixtures have it for other layers than their dense models.
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> slides, config.Bool("use_sliding_window"));
  if (slides.value_or(false) && config.Has("sliding_window") && kQwenMoe(family) && !config.Has("layer_types")) {
    return config.Error("use_sliding_window", absl::StrCat("is true, which is supported for ", family.architecture,
                                                           " only with layer_types"));
  }
  return absl::OkStatus();
}

bool IsCheckedField(std::string_view name) {
  const auto is_it = [&](const Field& field) { return name == field.name; };
  return std::ranges::any_of(kScoreFields, is_it) || std::ranges::any_of(kResidualFields, is_it) ||
         std::ranges::any_of(kPositionFields, is_it) || std::ranges::any_of(kExpertFields, is_it);
}

absl::Status RefuseRopeByLayerType(const JsonFields& config, const FamilyTraits& family) {
  for (const char* source : {"rope_parameters", "rope_scaling"}) {
    WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* rope, config.Object(source));
    for (const char* layer_type : {"full_attention", "sliding_attention"}) {
      if (rope == nullptr || !config.Nested(*rope, source).Has(layer_type)) continue;
      return config.Nested(*rope, source)
          .Error(layer_type, absl::StrCat("sets RoPE by layer type, which is not supported for ", family.architecture));
    }
  }
  return absl::OkStatus();
}

}  // namespace winnow
