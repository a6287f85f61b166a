#include "common/model/gated_delta_config.h"

#include <algorithm>

#include "common/base/status.h"

namespace winnow {
namespace {

constexpr int64_t kMaxDeltaHeads = 1024;
constexpr int64_t kMaxDeltaHeadDim = 512;
constexpr int64_t kMaxConvWidth = 16;

absl::StatusOr<int> IntOr(const JsonFields& config, const char* field, int64_t low, int64_t high, int64_t otherwise) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> value, config.Int(field, low, high));
  return static_cast<int>(value.value_or(otherwise));
}

// Without a list of types every full_attention_interval-th layer attends to rows.
absl::StatusOr<std::vector<bool>> DeltaLayers(const JsonFields& config, int num_layers) {
  std::vector<bool> layers;
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* types, config.Array("layer_types"));
  if (types == nullptr) {
    WINNOW_ASSIGN_OR_RETURN(const int interval, IntOr(config, "full_attention_interval", 1, 4096, 4));
    for (int layer = 0; layer < num_layers; ++layer) layers.push_back((layer + 1) % interval != 0);
    return layers;
  }
  if (types->size() != static_cast<size_t>(num_layers)) {
    return config.Error("layer_types", absl::StrCat("has ", types->size(), " entries for ", num_layers, " layers"));
  }
  for (const nlohmann::json& type : *types) {
    if (type != "linear_attention" && type != "full_attention") {
      return config.Error("layer_types", "may hold only full_attention and linear_attention");
    }
    layers.push_back(type == "linear_attention");
  }
  return layers;
}

}  // namespace

int GatedDeltaConfig::num_layers() const {
  return static_cast<int>(std::count(layers.begin(), layers.end(), true));
}

absl::StatusOr<GatedDeltaConfig> ParseGatedDeltaConfig(const JsonFields& config, bool by_key_head, int num_layers) {
  GatedDeltaConfig delta;
  delta.by_key_head = by_key_head;
  WINNOW_ASSIGN_OR_RETURN(delta.num_key_heads, IntOr(config, "linear_num_key_heads", 1, kMaxDeltaHeads, 16));
  WINNOW_ASSIGN_OR_RETURN(delta.num_value_heads, IntOr(config, "linear_num_value_heads", 1, kMaxDeltaHeads, 32));
  WINNOW_ASSIGN_OR_RETURN(delta.key_dim, IntOr(config, "linear_key_head_dim", 1, kMaxDeltaHeadDim, 128));
  WINNOW_ASSIGN_OR_RETURN(delta.value_dim, IntOr(config, "linear_value_head_dim", 1, kMaxDeltaHeadDim, 128));
  WINNOW_ASSIGN_OR_RETURN(delta.conv_width, IntOr(config, "linear_conv_kernel_dim", 2, kMaxConvWidth, 4));
  if (delta.num_value_heads % delta.num_key_heads != 0) {
    return config.Error(
        "linear_num_value_heads",
        absl::StrCat("is ", delta.num_value_heads, ", no multiple of linear_num_key_heads ", delta.num_key_heads));
  }
  WINNOW_ASSIGN_OR_RETURN(delta.layers, DeltaLayers(config, num_layers));
  if (delta.num_layers() == 0 || delta.num_layers() == num_layers) {
    return config.Error(config.Has("layer_types") ? "layer_types" : "full_attention_interval",
                        absl::StrCat("makes ", delta.num_layers(), " of ", num_layers,
                                     " layers linear attention; some must be, and not all"));
  }
  return delta;
}

}  // namespace winnow
