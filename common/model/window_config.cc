#include "common/model/window_config.h"

#include <algorithm>

#include "common/base/status.h"

namespace winnow {
namespace {

constexpr int64_t kMaxWindowPositions = int64_t{1} << 31;

// Which layers have a sliding window where `layer_types` does not say: the defaults of transformers.
absl::StatusOr<std::vector<bool>> DefaultSlidingLayers(const JsonFields& config, ModelFamily family, int num_layers) {
  std::vector<bool> sliding(static_cast<size_t>(num_layers), false);
  const auto set = [&](const auto& is_sliding) {
    for (int layer = 0; layer < num_layers; ++layer) sliding[static_cast<size_t>(layer)] = is_sliding(layer);
  };
  switch (family) {
    case ModelFamily::kLlama:
    case ModelFamily::kOlmo2:
    case ModelFamily::kGlm4Moe:
    case ModelFamily::kQwen3Next:
    case ModelFamily::kQwen35:
    case ModelFamily::kQwen35Moe:
    case ModelFamily::kDeepseekV2:
    case ModelFamily::kDeepseekV3:
    case ModelFamily::kDeepseekV32:
    case ModelFamily::kGlmMoeDsa:
      break;
    case ModelFamily::kMistral:
    case ModelFamily::kMixtral:
    case ModelFamily::kPhi3:
      set([](int) { return true; });
      break;
    case ModelFamily::kQwen2:
    case ModelFamily::kQwen3:
    case ModelFamily::kQwen2Moe:
    case ModelFamily::kQwen3Moe: {
      WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> use, config.Bool("use_sliding_window"));
      WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> full,
                              config.Int("max_window_layers", 0, kMaxWindowPositions));
      if (use.value_or(false)) set([&](int layer) { return layer >= full.value_or(28); });
      break;
    }
    case ModelFamily::kGemma3: {
      const char* field = config.Has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
      WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> pattern, config.Int(field, 1, kMaxWindowPositions));
      set([&](int layer) { return (layer + 1) % pattern.value_or(6) != 0; });
      break;
    }
    case ModelFamily::kOlmo3:
      set([](int layer) { return (layer + 1) % 4 != 0; });
      break;
    case ModelFamily::kGemma2:
    case ModelFamily::kGptOss:
      set([](int layer) { return layer % 2 == 0; });
      break;
  }
  return sliding;
}

absl::StatusOr<std::vector<bool>> SlidingLayers(const JsonFields& config, ModelFamily family, int num_layers) {
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* layer_types, config.Array("layer_types"));
  if (layer_types == nullptr) return DefaultSlidingLayers(config, family, num_layers);
  if (layer_types->size() != static_cast<size_t>(num_layers)) {
    return config.Error("layer_types",
                        absl::StrCat("has ", layer_types->size(), " entries for ", num_layers, " layers"));
  }
  std::vector<bool> sliding;
  for (const nlohmann::json& type : *layer_types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return config.Error("layer_types", "may hold only full_attention and sliding_attention");
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseWindows(const JsonFields& config, ModelFamily family, int num_layers,
                                                   int64_t max_context_tokens) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<bool> sliding, SlidingLayers(config, family, num_layers));
  const bool slides = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
  // Transformers writes 0 where use_sliding_window is false.
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> window,
                          config.Int("sliding_window", slides ? 1 : 0, kMaxWindowPositions));
  // RoPE of the windowed layers of these is their own, however wide the window.
  const bool window_rope = family == ModelFamily::kGemma3 || family == ModelFamily::kOlmo3;
  if (slides && !window.has_value() && (window_rope || family == ModelFamily::kGemma2))
    return config.Error("sliding_window", "is missing");
  std::vector<uint32_t> windows;
  if (!slides || !window.has_value()) return windows;
  if (*window >= max_context_tokens && !window_rope) return windows;
  const auto width = static_cast<uint32_t>(std::min(*window, max_context_tokens));
  for (const bool slides_here : sliding) windows.push_back(slides_here ? width : 0);
  return windows;
}

}  // namespace winnow
