#pragma once
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace winnow {

// Models of real shapes whose weights are random numbers: for measuring without a checkpoint. They are named where a
// model directory would be, as "synthetic:qwen3-14b". With "-fp8" or "-int4" behind the name the config says that the
// layers are quantised, which GPUs then hold them as.
inline constexpr std::string_view kSyntheticPrefix = "synthetic:";
bool IsSyntheticModel(std::string_view model);

// The shape of "synthetic:NAME"; NOT_FOUND lists the names there are. Random weights were never trained on a length:
// max_context_tokens is only what positions can count.
absl::StatusOr<ModelConfig> SyntheticModelConfig(std::string_view model);

// The configuration of what --model names: SyntheticModelConfig, or LoadModelConfig of a directory.
absl::StatusOr<ModelConfig> ModelConfigOf(const std::string& model);

// "synthetic:llama3-8b, synthetic:qwen3-0.6b, ..." for help texts.
std::string SyntheticModelNames();

}  // namespace winnow
