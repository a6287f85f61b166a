#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"

namespace winnow {

// How a family spells its mixture of experts in config.json.
enum class MoeFields : uint8_t {
  kNone,
  kMixtral,
  kQwen2,
  kQwen3,
  kQwen3Next,
  kQwen35,
  kGptOss,
  kDeepseek,
  kDeepseekV2
};

// The mixture of experts of a model's sparse layers: each token goes through the best few of many MLPs, chosen by a
// router in f32, and through a shared one where there is one. What the chosen experts give is added up in ascending
// order of the experts, each with its weight.
struct MoeConfig {
  int num_experts = 0;               // 0: every layer has one dense MLP
  int experts_per_token = 0;         // the k largest router probabilities, ties to the lower expert
  int intermediate_size = 0;         // of an expert
  bool normalizes = false;           // the chosen probabilities are divided by their sum
  float scale = 1;                   // and then multiplied with this
  int shared_intermediate_size = 0;  // of the expert that every token goes through; 0: there is none
  bool shared_gate = false;          // a gate decides how much of it
  bool biases = false;               // of the router and of every expert
  bool stored_fused = false;         // as one tensor of all experts' gates and ups, and one of their downs
  // DeepSeek's routing: probabilities are sigmoids (from V3 on), a learned correction takes part in the choice alone,
  // and only the best groups of experts take part, by the sum of their best `group_scores` (RouteParams).
  bool sigmoid = false;
  bool correction = false;
  int groups = 1;
  int groups_per_token = 1;
  int group_scores = 2;
  std::vector<bool> sparse_layers;  // [num_layers]; the others have a dense MLP

  bool IsSparse(int layer) const { return num_experts > 0 && sparse_layers[static_cast<size_t>(layer)]; }
  int num_sparse_layers() const;
};

// `intermediate_size`: of the whole config, which is an expert's where the family has no other field for it.
absl::StatusOr<MoeConfig> ParseMoeConfig(const JsonFields& config, MoeFields fields, int num_layers,
                                         int intermediate_size);

}  // namespace winnow
