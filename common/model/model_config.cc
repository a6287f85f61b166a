#include "common/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>

#include "common/base/status.h"
#include "common/model/mapped_file.h"
#include "common/model/quantized/mxfp4.h"
#include "common/model/rope.h"
#include "common/model/safetensors_header.h"
#include "common/model/text_part.h"
#include "common/model/unsupported_fields.h"
#include "common/model/window_config.h"

namespace winnow {
namespace {

using nlohmann::json;

// Sanity limits: above any model known, below what would overflow an int in shape arithmetic.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 31;

// Fields that do not change what inference computes, or that are read elsewhere in this file.
bool IsKnownField(std::string_view name) {
  static const std::set<std::string_view> kKnown = {
      "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias",
      "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
      "original_max_position_embeddings", "max_position_embeddings", "sliding_window", "use_sliding_window",
      "max_window_layers", "layer_types", "eos_token_id", "bos_token_id", "quantization_config", "num_experts",
      "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
      "shared_expert_intermediate_size", "decoder_sparse_step", "mlp_only_layers", "qkv_bias", "hidden_activation",
      "swiglu_limit", "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping",
      "use_bidirectional_attention", "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern",
      "n_routed_experts", "n_shared_experts", "n_group", "topk_group", "routed_scaling_factor", "scoring_func",
      "topk_method", "first_k_dense_replace", "mlp_layer_types", "moe_layer_freq", "use_qk_norm", "kv_lora_rank",
      "experts_per_token", "initial_context_length", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
      "v_head_dim", "rope_interleave", "index_n_heads", "index_head_dim", "index_topk", "indexer_types",
      "indexer_rope_interleave", "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim",
      "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "mamba_ssm_dtype",
      "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
      // Harmless.
      "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "add_cross_attention",
      "attention_dropout", "attn_implementation", "auto_map", "bad_words_ids", "begin_suppress_tokens",
      "cache_implementation", "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
      "diversity_penalty", "do_sample", "dtype", "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size",
      "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
      "hidden_dropout", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id",
      "length_penalty", "max_length", "max_sequence_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
      "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits",
      "output_scores", "pad_token_id", "prefix", "aux_loss_alpha", "ep_size", "num_nextn_predict_layers", "qk_head_dim",
      "seq_aux", "pretraining_tp", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty",
      "resid_pdrop", "return_dict", "return_dict_in_generate", "router_aux_loss_coef", "router_jitter_noise",
      "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
      "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p",
      "unk_token_id", "use_bfloat16", "use_cache"};
  return kKnown.contains(name);
}

std::string Supported() {
  return absl::StrCat(SupportedArchitectures(), ", and ", SupportedMultimodal());
}

absl::StatusOr<const FamilyTraits*> FindFamily(const JsonFields& config) {
  WINNOW_ASSIGN_OR_RETURN(const json* architectures, config.Array("architectures"));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> model_type, config.String("model_type"));
  if (architectures == nullptr || architectures->empty()) {
    if (!model_type.has_value())
      return config.Error("architectures", absl::StrCat("is missing; supported are ", Supported()));
    const FamilyTraits* family = FamilyOfModelType(*model_type);
    if (family == nullptr)
      return config.Error("model_type", absl::StrCat("is ", QuotedName(*model_type), "; supported are ", Supported()));
    return family;
  }
  const json& first = architectures->front();
  if (!first.is_string()) return config.Error("architectures", "must hold strings");
  const auto& name = first.get_ref<const std::string&>();
  const FamilyTraits* family = FamilyOfArchitecture(name);
  if (family == nullptr)
    return config.Error("architectures", absl::StrCat("is ", QuotedName(name), "; supported are ", Supported()));
  // Kimi K2 has DeepSeek V3's layers under a name of its own.
  const bool kimi = family->family == ModelFamily::kDeepseekV3 && model_type == "kimi_k2";
  if (model_type.has_value() && *model_type != family->model_type && !kimi) {
    return config.Error("model_type",
                        absl::StrCat("is ", QuotedName(*model_type), ", which does not belong to ", name));
  }
  return family;
}

absl::StatusOr<int> Required(const JsonFields& config, const char* field, int64_t low, int64_t high) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> value, config.Int(field, low, high));
  if (!value.has_value()) return config.Error(field, "is missing");
  return static_cast<int>(*value);
}

absl::Status RefuseUnsupported(const JsonFields& config, const FamilyTraits& family) {
  for (const char* field :
       {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"}) {
    if (family.moe == MoeFields::kNone && config.Has(field)) {
      return config.Error(field, absl::StrCat("is set, and ", family.architecture, " is no mixture of experts"));
    }
  }
  for (const char* field : {"text_config", "vision_config", "audio_config"}) {
    if (config.Has(field)) return config.Error(field, "is set: multimodal models are not supported");
  }
  WINNOW_RETURN_IF_ERROR(RefuseOtherArithmetic(config, family));
  const bool gelu = family.activation == Activation::kGeluTanh;
  const char* const supported = gelu ? "gelu_pytorch_tanh" : "silu";
  const char* const field = gelu && config.Has("hidden_activation") ? "hidden_activation" : "hidden_act";
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> activation, config.String(field));
  if (activation.value_or(supported) != supported) {
    return config.Error(field, absl::StrCat("is ", QuotedName(*activation), "; only ", supported, " is supported"));
  }
  return absl::OkStatus();
}

absl::Status ParseShape(const JsonFields& config, const FamilyTraits& family, ModelConfig& out) {
  WINNOW_ASSIGN_OR_RETURN(out.num_layers, Required(config, "num_hidden_layers", 1, kMaxLayers));
  WINNOW_ASSIGN_OR_RETURN(out.hidden_size, Required(config, "hidden_size", 1, kMaxWidth));
  const bool has_dense_mlp = family.moe != MoeFields::kQwen35;
  WINNOW_ASSIGN_OR_RETURN(
      out.intermediate_size,
      Required(config, has_dense_mlp ? "intermediate_size" : "moe_intermediate_size", 1, kMaxWidth));
  WINNOW_ASSIGN_OR_RETURN(out.num_query_heads, Required(config, "num_attention_heads", 1, kMaxHeads));
  WINNOW_ASSIGN_OR_RETURN(out.vocab_size, Required(config, "vocab_size", 1, kMaxVocab));

  if (family.latent_attention) {
    WINNOW_ASSIGN_OR_RETURN(out.latent, ParseLatentConfig(config, family.indexer,
                                                          family.family == ModelFamily::kGlmMoeDsa, out.num_layers));
    out.num_kv_heads = 1;
    out.head_dim = out.latent->shape.key_dim();
    out.rotary_dim = out.latent->shape.rope_dim;
    out.attention_scale = 1 / std::sqrt(static_cast<float>(out.latent->query_dim()));
    return absl::OkStatus();
  }
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> kv_heads, config.Int("num_key_value_heads", 1, kMaxHeads));
  out.num_kv_heads = static_cast<int>(kv_heads.value_or(out.num_query_heads));
  if (out.num_query_heads % out.num_kv_heads != 0) {
    return config.Error(
        "num_key_value_heads",
        absl::StrCat("is ", out.num_kv_heads, ", which does not divide num_attention_heads ", out.num_query_heads));
  }

  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> head_dim, config.Int("head_dim", 1, kMaxHeadDim));
  if (head_dim.has_value()) {
    out.head_dim = static_cast<int>(*head_dim);
  } else if (family.default_head_dim != 0) {
    out.head_dim = static_cast<int>(family.default_head_dim);
  } else if (out.hidden_size % out.num_query_heads != 0) {
    return config.Error("head_dim", absl::StrCat("is missing, and hidden_size ", out.hidden_size,
                                                 " is not a multiple of num_attention_heads ", out.num_query_heads));
  } else {
    out.head_dim = out.hidden_size / out.num_query_heads;
  }
  if (out.head_dim % 2 != 0 || out.head_dim > kMaxHeadDim) {
    return config.Error("head_dim", absl::StrCat("is ", out.head_dim, "; it must be even and at most ", kMaxHeadDim));
  }
  out.rotary_dim = out.head_dim;
  return absl::OkStatus();
}

bool IsGemma(ModelFamily family) {
  return family == ModelFamily::kGemma2 || family == ModelFamily::kGemma3;
}

// The cap that `field` names: `missing` where there is no such field, 0 where it is null.
absl::StatusOr<float> ParseSoftcap(const JsonFields& config, const char* field, float missing) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> cap, config.Number(field));
  if (!cap.has_value()) return config.IsNull(field) ? 0 : missing;
  if (*cap <= 0) return config.Error(field, "must be above 0");
  return static_cast<float>(*cap);
}

// What Gemma 2 and 3 have beside norms and windows.
absl::Status ParseGemma(const JsonFields& config, ModelConfig& out) {
  const bool second = out.family == ModelFamily::kGemma2;
  out.norms_add_one = true;
  out.embedding_scale = std::sqrt(static_cast<float>(out.hidden_size));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> scalar, config.Number("query_pre_attn_scalar"));
  if (scalar.has_value() && *scalar <= 0) return config.Error("query_pre_attn_scalar", "must be above 0");
  out.attention_scale = static_cast<float>(1 / std::sqrt(scalar.value_or(256)));
  WINNOW_ASSIGN_OR_RETURN(out.final_logit_softcap, ParseSoftcap(config, "final_logit_softcapping", second ? 30 : 0));
  if (second) {
    WINNOW_ASSIGN_OR_RETURN(out.attention_softcap, ParseSoftcap(config, "attn_logit_softcapping", 50));
  }
  return absl::OkStatus();
}

absl::Status ParseFlags(const JsonFields& config, const FamilyTraits& family, ModelConfig& out) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> eps, config.Number("rms_norm_eps"));
  if (eps.has_value() && (*eps < 0 || *eps > 1)) return config.Error("rms_norm_eps", "must be between 0 and 1");
  out.rms_norm_eps = static_cast<float>(eps.value_or(family.default_rms_norm_eps));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> attention_bias, config.Bool("attention_bias"));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> qkv_bias, config.Bool("qkv_bias"));  // Qwen2-MoE's name
  out.qkv_bias = attention_bias.has_value() ? *attention_bias : qkv_bias.value_or(family.qkv_bias);
  out.o_bias = family.o_bias_follows && attention_bias.value_or(family.qkv_bias);
  if (out.latent && out.latent->query_rank == 0 && out.qkv_bias) {
    return config.Error("attention_bias", "is true, which is supported only with q_lora_rank");
  }
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> mlp_bias, config.Bool("mlp_bias"));
  out.mlp_bias = mlp_bias.value_or(false);
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> tied, config.Bool("tie_word_embeddings"));
  out.tie_word_embeddings = tied.value_or(IsGemma(family.family));
  out.qk_norm = family.qk_norm != QkNorm::kNone;
  if (family.family == ModelFamily::kGlm4Moe) {
    WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> qk_norm, config.Bool("use_qk_norm"));
    out.qk_norm = qk_norm.value_or(false);
  }
  out.qk_norm_projection = family.qk_norm == QkNorm::kProjection;
  if (family.gated_delta) {
    out.norms_add_one = out.attention_gate = true;
    WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> gate, config.Bool("attn_output_gate"));
    if (!gate.value_or(true)) return config.Error("attn_output_gate", "is false; only true is supported");
    const bool by_key_head = family.family == ModelFamily::kQwen3Next;
    WINNOW_ASSIGN_OR_RETURN(out.delta, ParseGatedDeltaConfig(config, by_key_head, out.num_layers));
  }
  out.norms = family.norms;
  out.activation = family.activation;
  out.fused_projections = family.fused_projections;
  out.attention_sinks = family.family == ModelFamily::kGptOss;
  if (IsGemma(family.family)) WINNOW_RETURN_IF_ERROR(ParseGemma(config, out));
  WINNOW_ASSIGN_OR_RETURN(out.moe, ParseMoeConfig(config, family.moe, out.num_layers, out.intermediate_size));
  return absl::OkStatus();
}

// How much of each head turns.
absl::Status ParseRotaryDim(const JsonFields& config, ModelConfig& out) {
  out.rotary_dim = static_cast<int>(out.rope.partial_rotary * out.head_dim);
  if (out.rotary_dim < 2 || out.rotary_dim % 2 != 0) {
    return config.Error("partial_rotary_factor", absl::StrCat("turns ", out.rotary_dim, " of ", out.head_dim,
                                                              " elements of a head; their number must be even"));
  }
  return absl::OkStatus();
}

absl::Status CheckLongRope(const JsonFields& config, const ModelConfig& out) {
  if (out.rope.type != RopeType::kLongRope) return absl::OkStatus();
  const char* const source = config.Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const auto pairs = static_cast<size_t>(out.rotary_dim / 2);
  for (const auto& [field, divisors] :
       {std::pair("short_factor", &out.rope.short_factors), std::pair("long_factor", &out.rope.long_factors)}) {
    if (divisors->size() == pairs) continue;
    return config.Error(absl::StrCat(source, ".", field),
                        absl::StrCat("has ", divisors->size(), " entries for ", pairs, " pairs of a head that turn"));
  }
  return absl::OkStatus();
}

absl::Status ParsePositions(const JsonFields& config, const FamilyTraits& family, ModelConfig& out) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> positions,
                          config.Int("max_position_embeddings", 1, kMaxPositions));
  const int64_t max_positions = positions.value_or(family.default_max_position_embeddings);
  if (!family.window_rope) WINNOW_RETURN_IF_ERROR(RefuseRopeByLayerType(config, family));
  WINNOW_ASSIGN_OR_RETURN(out.rope, ParseRopeConfig(config, max_positions, out.warnings, family.partial_rotary,
                                                    family.default_partial_rotary));
  if (out.rope.partial_rotary < 1) WINNOW_RETURN_IF_ERROR(ParseRotaryDim(config, out));
  WINNOW_RETURN_IF_ERROR(CheckLongRope(config, out));
  if (out.latent && out.family != ModelFamily::kGlmMoeDsa && out.rope.type == RopeType::kYarn &&
      out.rope.mscale_all_dim != 0) {
    const auto mscale = static_cast<float>(YarnMscale(out.rope.factor, out.rope.mscale_all_dim));
    out.attention_scale *= mscale * mscale;
  }
  out.max_context_tokens = max_positions;
  if (out.rope.type == RopeType::kYarn) {
    // Checkpoints differ in whether max_position_embeddings is the length before or after the extension.
    const double extended =
        std::floor(out.rope.factor * static_cast<double>(out.rope.original_max_position_embeddings));
    out.max_context_tokens =
        std::max(max_positions, static_cast<int64_t>(std::min(extended, static_cast<double>(kMaxPositions))));
  }
  if (out.rope.type == RopeType::kDynamic) {
    out.warnings.push_back(
        absl::StrCat("dynamic RoPE scaling is exact up to max_position_embeddings; the context is limited to ",
                     out.max_context_tokens, " tokens"));
  }

  if (out.rope.type == RopeType::kLongRope && out.rope.beyond_original) {
    out.warnings.push_back(absl::StrCat(
        "longrope: contexts may exceed the ", out.rope.original_max_position_embeddings,
        " positions of original_max_position_embeddings, so that long_factor holds for all of them; with a greatest "
        "context of no more than that short_factor does"));
  }

  if (family.window_rope) {
    // Windowed layers of OLMo 3 have the model's base and no scaling.
    const double theta = out.family == ModelFamily::kOlmo3 ? out.rope.theta : RopeConfig().theta;
    WINNOW_ASSIGN_OR_RETURN(out.window_rope, ParseWindowRopeConfig(config, max_positions, out.warnings, theta));
  }
  if (out.latent || out.delta) return absl::OkStatus();  // which have no windows
  WINNOW_ASSIGN_OR_RETURN(out.windows, ParseWindows(config, out.family, out.num_layers, out.max_context_tokens));
  return absl::OkStatus();
}

// Blocks lie along the inputs of an expert's matrices.
absl::Status CheckMxfp4(const JsonFields& config, const ModelConfig& out) {
  if (out.quantization.format != WeightQuantization::Format::kMxfp4) return absl::OkStatus();
  if (out.family != ModelFamily::kGptOss) {
    return config.Error(
        "quantization_config.quant_method",
        absl::StrCat("is 'mxfp4', which is supported for ", ModelFamilyName(ModelFamily::kGptOss), " alone"));
  }
  for (const auto& [field, width] :
       {std::pair("hidden_size", out.hidden_size), std::pair("intermediate_size", out.moe.intermediate_size)}) {
    if (width % static_cast<int>(kMxfp4Block) == 0) continue;
    return config.Error(field, absl::StrCat("is ", width, "; with MXFP4 it must be a multiple of ", kMxfp4Block));
  }
  return absl::OkStatus();
}

// nullopt: the field is missing or null. Ids that the vocabulary does not have can never be produced: they are dropped
// with a warning.
absl::StatusOr<std::optional<std::vector<uint32_t>>> TokenIds(const JsonFields& config, const char* field,
                                                              ModelConfig& out) {
  if (!config.Has(field)) return std::nullopt;
  const json& value = config.object()[field];
  const json list = value.is_array() ? value : json::array({value});
  std::vector<uint32_t> ids;
  for (const json& id : list) {
    if (!id.is_number_integer()) return config.Error(field, "must be a token id or a list of token ids");
    if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(out.vocab_size)) {
      ids.push_back(id.get<uint32_t>());
    } else {
      out.warnings.push_back(absl::StrCat(field, " holds an id outside the vocabulary of ", out.vocab_size));
    }
  }
  return ids;
}

absl::Status ParseTokens(const JsonFields& config, ModelConfig& out) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::vector<uint32_t>> eos, TokenIds(config, "eos_token_id", out));
  if (eos.has_value()) out.eos_token_ids = *eos;
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::vector<uint32_t>> bos, TokenIds(config, "bos_token_id", out));
  if (bos.has_value()) {
    if (bos->size() > 1) return config.Error("bos_token_id", "must be one token id");
    out.bos_token_id = bos->empty() ? std::nullopt : std::optional(bos->front());
  }
  return absl::OkStatus();
}

}  // namespace

double ModelConfig::active_mlp_weights() const {
  double features = static_cast<double>(moe.num_sparse_layers()) * moe.experts_per_token * moe.intermediate_size;
  for (int layer = 0; layer < num_layers; ++layer) features += mlp_features(layer);
  return 3 * features * hidden_size;
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_config_json,
                                             std::string_view directory) {
  const std::string path = absl::StrCat(AbslSv(directory), "/config.json");
  WINNOW_ASSIGN_OR_RETURN(json root, ParseJsonObject(config_json, path));
  ModelConfig out;
  const MultimodalTraits* multimodal = MultimodalTraitsOf(JsonFields(root, path));
  if (multimodal != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(root, TextPart(JsonFields(root, path), *multimodal));
    out.warnings.push_back(
        absl::StrCat("config.json: of ", multimodal->architecture, " the language model alone is served"));
  }
  const JsonFields config(root, path, multimodal == nullptr ? "" : "text_config.");
  WINNOW_ASSIGN_OR_RETURN(const FamilyTraits* family, FindFamily(config));
  out.family = family->family;
  if (out.family == ModelFamily::kQwen35 || out.family == ModelFamily::kQwen35Moe) DropRotationOfImages(root);
  WINNOW_RETURN_IF_ERROR(RefuseUnsupported(config, *family));
  WINNOW_RETURN_IF_ERROR(ParseShape(config, *family, out));
  WINNOW_RETURN_IF_ERROR(ParseFlags(config, *family, out));
  WINNOW_RETURN_IF_ERROR(ParsePositions(config, *family, out));
  WINNOW_RETURN_IF_ERROR(ParseTokens(config, out));
  WINNOW_ASSIGN_OR_RETURN(out.quantization, ParseWeightQuantization(config));
  WINNOW_RETURN_IF_ERROR(CheckMxfp4(config, out));
  for (const auto& [key, value] : root.items()) {
    if (!IsKnownField(key) && !IsCheckedField(key) && !value.is_null())
      out.warnings.push_back(absl::StrCat("config.json: ", QuotedName(key), " is ignored"));
  }
  if (!generation_config_json.empty()) {
    const std::string generation_path = absl::StrCat(AbslSv(directory), "/generation_config.json");
    WINNOW_ASSIGN_OR_RETURN(const json generation, ParseJsonObject(generation_config_json, generation_path));
    WINNOW_RETURN_IF_ERROR(ParseTokens(JsonFields(generation, generation_path), out));
  }
  return out;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory) {
  constexpr size_t kMaxBytes = 16 << 20;
  WINNOW_ASSIGN_OR_RETURN(const std::string config, ReadSmallFile(directory + "/config.json", kMaxBytes));
  std::string generation_config;
  std::error_code error;
  if (std::filesystem::exists(directory + "/generation_config.json", error)) {
    WINNOW_ASSIGN_OR_RETURN(generation_config, ReadSmallFile(directory + "/generation_config.json", kMaxBytes));
  }
  return ParseModelConfig(config, generation_config, directory);
}

}  // namespace winnow
