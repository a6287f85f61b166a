#include "common/model/unsupported_fields.h"

#include "common/base/status.h"

namespace winnow {

absl::Status RefuseOtherArithmetic(const JsonFields& config, const FamilyTraits& family) {
  using Built = bool (*)(const FamilyTraits&);
  struct Field {
    const char* name;
    Built built = [](const FamilyTraits&) { return false; };
  };
  static constexpr Built kGemma = [](const FamilyTraits& of) { return of.family == ModelFamily::kGemma3; };
  static constexpr Built kDeepseekMoe = [](const FamilyTraits& of) { return of.moe == MoeFields::kDeepseek; };
  static constexpr Built kLatent = [](const FamilyTraits& of) { return of.latent_attention; };
  static constexpr Built kIndexer = [](const FamilyTraits& of) { return of.indexer; };
  static constexpr Built kGlm4 = [](const FamilyTraits& of) { return of.family == ModelFamily::kGlm4Moe; };
  static constexpr Field kFields[] = {{"attn_logit_softcapping"},
                                      {"final_logit_softcapping", kGemma},
                                      {"query_pre_attn_scalar", kGemma},
                                      {"rope_local_base_freq", kGemma},
                                      {"use_bidirectional_attention"},
                                      {"logit_scale"},
                                      {"logits_scaling"},
                                      {"embedding_multiplier"},
                                      {"residual_multiplier"},
                                      {"attention_multiplier"},
                                      {"scale_emb"},
                                      {"scale_depth"},
                                      {"dim_model_base"},
                                      {"clip_qkv"},
                                      {"use_qk_norm", kGlm4},
                                      {"qk_layernorm"},
                                      {"n_group", kDeepseekMoe},
                                      {"topk_group", kDeepseekMoe},
                                      {"routed_scaling_factor", kDeepseekMoe},
                                      {"scoring_func", kDeepseekMoe},
                                      {"topk_method", kDeepseekMoe},
                                      {"n_shared_experts", kDeepseekMoe},
                                      {"first_k_dense_replace", kDeepseekMoe},
                                      {"moe_layer_freq"},
                                      {"kv_lora_rank", kLatent},
                                      {"q_lora_rank", kLatent},
                                      {"index_topk", kIndexer},
                                      {"no_rope_layers"},
                                      {"no_rope_layer_interval"},
                                      {"attn_temperature_tuning"},
                                      {"attention_chunk_size"},
                                      {"use_parallel_residual"},
                                      {"parallel_attn"},
                                      {"alibi"},
                                      {"dual_chunk_attention_config"}};
  for (const Field& field : kFields) {
    if (!config.Has(field.name) || field.built(family)) continue;
    const nlohmann::json& value = config.object()[field.name];
    if (value == false || value == 1) continue;
    return config.Error(field.name, absl::StrCat("is ", value.dump().substr(0, 60), ", which is not supported for ",
                                                 family.architecture));
  }
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> limit, config.Number("swiglu_limit"));
  if (limit.has_value() && (family.activation != Activation::kClampedSilu || *limit != 7)) {
    return config.Error("swiglu_limit", absl::StrCat("is ", *limit, "; only 7 in ",
                                                     ModelFamilyName(ModelFamily::kGptOss), " is supported"));
  }
  return absl::OkStatus();
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
