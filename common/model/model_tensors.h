#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"

namespace winnow {

// Names of the tensors of all supported families (Hugging Face's).
inline constexpr std::string_view kEmbeddingTensor = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormTensor = "model.norm.weight";
inline constexpr std::string_view kLmHeadTensor = "lm_head.weight";
std::string LayerTensor(int layer, std::string_view suffix);  // "model.layers.<layer>.<suffix>"

struct ExpectedTensor {
  std::string name;
  std::vector<uint64_t> shape;  // weights of projections: [out_features, in_features]
  bool is_bytes = false;        // U8, and not numbers: MXFP4's blocks and scales
};

// Whether it is the weight of a linear layer, which a checkpoint may store quantised (StoredWeight).
bool IsLinearWeight(const ExpectedTensor& tensor);

// Every tensor that a model of this shape reads, in the order of the forward pass. Weights are named as if plain.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config);

// Checks that the checkpoint holds all expected tensors with the right shape and a dtype of f32, f16 or bf16, and in
// quantised checkpoints what stores the weights of linear layers. The error names the first few offenders, each with
// its file, and counts the rest. Returns warnings: tensors that nothing reads.
absl::StatusOr<std::vector<std::string>> ValidateTensors(const Checkpoint& checkpoint, const ModelConfig& config);

// INVALID_ARGUMENT naming file, tensor and flat index of the first NaN or infinity, which would poison every output
// silently. The dtype must be f32, f16 or bf16.
absl::Status CheckFinite(const TensorView& tensor, std::string_view file);

// The same of scales of MXFP4, of which one value is NaN.
absl::Status CheckMxfp4Scales(const TensorView& tensor, std::string_view file);

// CheckFinite over all expected tensors with `num_threads` threads; the first offender in the order of ExpectedTensors.
absl::Status CheckWeightsFinite(const Checkpoint& checkpoint, const ModelConfig& config, int num_threads);

}  // namespace winnow
