#include "common/model/moe_config.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/model/safetensors_header.h"

namespace winnow {
namespace {

constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxExpertWidth = 1 << 20;

// The first of `names` that is set; INVALID_ARGUMENT names the first one when none is.
absl::StatusOr<int> FirstOf(const JsonFields& config, std::initializer_list<const char*> names, int64_t high) {
  for (const char* name : names) {
    WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> value, config.Int(name, 1, high));
    if (value.has_value()) return static_cast<int>(*value);
  }
  return config.Error(*names.begin(), "is missing");
}

// Layers of Qwen's families are sparse where (layer + 1) is a multiple of decoder_sparse_step, but for mlp_only_layers.
absl::Status ParseQwenLayers(const JsonFields& config, int num_layers, std::vector<bool>& sparse_layers) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> step, config.Int("decoder_sparse_step", 1, kMaxExpertWidth));
  for (int layer = 0; layer < num_layers; ++layer) sparse_layers[layer] = (layer + 1) % step.value_or(1) == 0;
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* dense, config.Array("mlp_only_layers"));
  if (dense == nullptr) return absl::OkStatus();
  for (const nlohmann::json& layer : *dense) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= static_cast<uint64_t>(num_layers)) {
      return config.Error("mlp_only_layers", absl::StrCat("must hold layers from 0 to ", num_layers - 1));
    }
    sparse_layers[layer.get<size_t>()] = false;
  }
  return absl::OkStatus();
}

// The first layers are dense, all others sparse, unless a field tells the kind of each.
absl::Status ParseDeepseekLayers(const JsonFields& config, int num_layers, std::vector<bool>& sparse_layers) {
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* types, config.Array("mlp_layer_types"));
  if (types == nullptr) {
    WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> dense,
                            config.Int("first_k_dense_replace", 0, kMaxExpertWidth));
    if (!dense.has_value()) return config.Error("first_k_dense_replace", "is missing");
    std::fill_n(sparse_layers.begin(), std::min<int64_t>(*dense, num_layers), false);
    return absl::OkStatus();
  }
  if (types->size() != static_cast<size_t>(num_layers)) {
    return config.Error("mlp_layer_types", absl::StrCat("has ", types->size(), " entries for ", num_layers, " layers"));
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    const nlohmann::json& type = (*types)[static_cast<size_t>(layer)];
    if (type != "dense" && type != "sparse") return config.Error("mlp_layer_types", "may hold only dense and sparse");
    sparse_layers[static_cast<size_t>(layer)] = type == "sparse";
  }
  return absl::OkStatus();
}

absl::Status RequireText(const JsonFields& config, const char* field, std::string_view only) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> text, config.String(field));
  if (text.value_or(std::string(only)) == only) return absl::OkStatus();
  return config.Error(field, absl::StrCat("is ", QuotedName(*text), "; only ", AbslSv(only), " is supported"));
}

// Groups of experts of which the best take part.
absl::Status ParseGroups(const JsonFields& config, MoeConfig& moe) {
  constexpr int64_t kMaxGroups = 64;
  WINNOW_ASSIGN_OR_RETURN(moe.groups, FirstOf(config, {"n_group"}, kMaxGroups));
  WINNOW_ASSIGN_OR_RETURN(moe.groups_per_token, FirstOf(config, {"topk_group"}, kMaxGroups));
  if (moe.num_experts % moe.groups != 0) {
    return config.Error("n_group",
                        absl::StrCat("is ", moe.groups, ", which does not divide the ", moe.num_experts, " experts"));
  }
  const int in_reach = moe.groups_per_token * (moe.num_experts / moe.groups);
  if (moe.groups_per_token > moe.groups || moe.experts_per_token > in_reach) {
    return config.Error("topk_group", absl::StrCat("is ", moe.groups_per_token, " of ", moe.groups, " groups, and ",
                                                   moe.experts_per_token, " experts are chosen from them"));
  }
  return absl::OkStatus();
}

// V2 has the probabilities of a softmax and no correction; a group's score is its best expert's.
absl::Status ParseDeepseekV2Routing(const JsonFields& config, MoeConfig& moe) {
  WINNOW_RETURN_IF_ERROR(RequireText(config, "scoring_func", "softmax"));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> method, config.String("topk_method"));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> normalizes, config.Bool("norm_topk_prob"));
  if (normalizes.value_or(false)) return config.Error("norm_topk_prob", "is true; only false is supported");
  if (method.value_or("greedy") == "greedy") return absl::OkStatus();
  if (*method != "group_limited_greedy") {
    return config.Error("topk_method",
                        absl::StrCat("is ", QuotedName(*method), "; supported are greedy and group_limited_greedy"));
  }
  moe.group_scores = 1;
  return ParseGroups(config, moe);
}

absl::Status ParseDeepseekV3Routing(const JsonFields& config, MoeConfig& moe) {
  moe.sigmoid = moe.correction = true;
  WINNOW_RETURN_IF_ERROR(RequireText(config, "scoring_func", "sigmoid"));
  WINNOW_RETURN_IF_ERROR(RequireText(config, "topk_method", "noaux_tc"));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> normalizes, config.Bool("norm_topk_prob"));
  moe.normalizes = normalizes.value_or(true);
  return ParseGroups(config, moe);
}

absl::Status ParseDeepseek(const JsonFields& config, MoeFields fields, int num_layers, MoeConfig& moe) {
  WINNOW_ASSIGN_OR_RETURN(moe.intermediate_size, FirstOf(config, {"moe_intermediate_size"}, kMaxWidth));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> shared, config.Int("n_shared_experts", 0, kMaxExperts));
  moe.shared_intermediate_size = static_cast<int>(shared.value_or(0)) * moe.intermediate_size;
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> scale, config.Number("routed_scaling_factor"));
  if (!scale.has_value()) return config.Error("routed_scaling_factor", "is missing");
  moe.scale = static_cast<float>(*scale);
  WINNOW_RETURN_IF_ERROR(fields == MoeFields::kDeepseekV2 ? ParseDeepseekV2Routing(config, moe)
                                                          : ParseDeepseekV3Routing(config, moe));
  return ParseDeepseekLayers(config, num_layers, moe.sparse_layers);
}

}  // namespace

int MoeConfig::num_sparse_layers() const {
  return num_experts == 0 ? 0 : static_cast<int>(std::count(sparse_layers.begin(), sparse_layers.end(), true));
}

absl::StatusOr<MoeConfig> ParseMoeConfig(const JsonFields& config, MoeFields fields, int num_layers,
                                         int intermediate_size) {
  MoeConfig moe;
  if (fields == MoeFields::kNone) return moe;
  const bool deepseek = fields == MoeFields::kDeepseek || fields == MoeFields::kDeepseekV2;
  WINNOW_ASSIGN_OR_RETURN(moe.num_experts, deepseek
                                               ? FirstOf(config, {"n_routed_experts", "num_local_experts"}, kMaxExperts)
                                               : FirstOf(config, {"num_experts", "num_local_experts"}, kMaxExperts));
  WINNOW_ASSIGN_OR_RETURN(moe.experts_per_token,
                          FirstOf(config, {"num_experts_per_tok", "experts_per_token"}, kMaxExperts));
  if (moe.experts_per_token > moe.num_experts) {
    return config.Error("num_experts_per_tok",
                        absl::StrCat("is ", moe.experts_per_token, ", more than the ", moe.num_experts, " experts"));
  }
  moe.sparse_layers.assign(static_cast<size_t>(num_layers), true);
  switch (fields) {
    case MoeFields::kNone:
      break;
    case MoeFields::kGptOss:
      moe.biases = moe.stored_fused = true;
      [[fallthrough]];
    case MoeFields::kMixtral:
      moe.intermediate_size = intermediate_size;
      moe.normalizes = true;
      break;
    case MoeFields::kDeepseek:
    case MoeFields::kDeepseekV2:
      WINNOW_RETURN_IF_ERROR(ParseDeepseek(config, fields, num_layers, moe));
      break;
    case MoeFields::kQwen35: {
      moe.shared_gate = moe.normalizes = moe.stored_fused = true;
      WINNOW_ASSIGN_OR_RETURN(moe.intermediate_size, FirstOf(config, {"moe_intermediate_size"}, kMaxExpertWidth));
      WINNOW_ASSIGN_OR_RETURN(moe.shared_intermediate_size,
                              FirstOf(config, {"shared_expert_intermediate_size"}, kMaxExpertWidth));
      break;
    }
    case MoeFields::kQwen3Next:
    case MoeFields::kQwen2: {
      moe.shared_gate = true;
      WINNOW_ASSIGN_OR_RETURN(moe.shared_intermediate_size,
                              FirstOf(config, {"shared_expert_intermediate_size"}, kMaxExpertWidth));
      [[fallthrough]];
    }
    case MoeFields::kQwen3: {
      WINNOW_ASSIGN_OR_RETURN(moe.intermediate_size, FirstOf(config, {"moe_intermediate_size"}, kMaxExpertWidth));
      WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> normalizes, config.Bool("norm_topk_prob"));
      moe.normalizes = normalizes.value_or(fields == MoeFields::kQwen3Next);
      WINNOW_RETURN_IF_ERROR(ParseQwenLayers(config, num_layers, moe.sparse_layers));
      break;
    }
  }
  return moe;
}

}  // namespace winnow
