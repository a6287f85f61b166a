#include "common/model/moe_config.h"

#include <algorithm>

#include "common/base/status.h"

namespace winnow {
namespace {

constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxWidth = 1 << 20;

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
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> step, config.Int("decoder_sparse_step", 1, kMaxWidth));
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

}  // namespace

int MoeConfig::num_sparse_layers() const {
  return num_experts == 0 ? 0 : static_cast<int>(std::count(sparse_layers.begin(), sparse_layers.end(), true));
}

absl::StatusOr<MoeConfig> ParseMoeConfig(const JsonFields& config, MoeFields fields, int num_layers,
                                         int intermediate_size) {
  MoeConfig moe;
  if (fields == MoeFields::kNone) return moe;
  WINNOW_ASSIGN_OR_RETURN(moe.num_experts, FirstOf(config, {"num_experts", "num_local_experts"}, kMaxExperts));
  WINNOW_ASSIGN_OR_RETURN(moe.experts_per_token, FirstOf(config, {"num_experts_per_tok"}, kMaxExperts));
  if (moe.experts_per_token > moe.num_experts) {
    return config.Error("num_experts_per_tok",
                        absl::StrCat("is ", moe.experts_per_token, ", more than the ", moe.num_experts, " experts"));
  }
  moe.sparse_layers.assign(static_cast<size_t>(num_layers), true);
  switch (fields) {
    case MoeFields::kNone:
      break;
    case MoeFields::kGptOss:
      moe.biases = true;
      [[fallthrough]];
    case MoeFields::kMixtral:
      moe.intermediate_size = intermediate_size;
      moe.normalizes = true;
      break;
    case MoeFields::kQwen2: {
      WINNOW_ASSIGN_OR_RETURN(moe.shared_intermediate_size,
                              FirstOf(config, {"shared_expert_intermediate_size"}, kMaxWidth));
      [[fallthrough]];
    }
    case MoeFields::kQwen3: {
      WINNOW_ASSIGN_OR_RETURN(moe.intermediate_size, FirstOf(config, {"moe_intermediate_size"}, kMaxWidth));
      WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> normalizes, config.Bool("norm_topk_prob"));
      moe.normalizes = normalizes.value_or(false);
      WINNOW_RETURN_IF_ERROR(ParseQwenLayers(config, num_layers, moe.sparse_layers));
      break;
    }
  }
  return moe;
}

}  // namespace winnow
