#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"

namespace winnow {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
const char* RopeTypeName(RopeType type);

// The rotary embedding of a config.json, every default resolved. Fields of other types than `type` keep their initial
// values.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double partial_rotary = 1;                              // share of a head's elements that turns
  double factor = 1;                                      // linear, dynamic, llama3, yarn, longrope
  int64_t original_max_position_embeddings = 0;           // llama3, yarn, longrope
  double low_freq_factor = 1;                             // llama3
  double high_freq_factor = 4;                            // llama3
  std::optional<double> attention_factor = std::nullopt;  // yarn, longrope; nullopt: from factor and mscale
  double mscale = 0;                                      // yarn; 0: not given
  double mscale_all_dim = 0;                              // yarn; 0: not given
  double beta_fast = 32;                                  // yarn
  double beta_slow = 1;                                   // yarn
  bool truncate = true;                                   // yarn
  // LongRoPE divides each frequency by a number of its own: by `short_factors` where no context is longer than the
  // original one, else by `long_factors`. Rows that were rotated stay as they are, so that one of them holds for all
  // that is served together: ModelConfig::ServeContextsOf says which.
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};
  bool beyond_original = false;  // the long ones hold

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Reads rope_parameters (transformers 5) or rope_scaling + rope_theta (transformers 4) of a whole config, with the
// precedence and defaults of transformers: rope_scaling before rope_parameters, rope_theta inside before outside,
// `rope_type` before `type`. An unsupported type is an error, and so is a partial_rotary_factor other than 1 where
// `allows_partial` is false, and a field that changes frequencies and is not built; other unknown fields become
// warnings. Where parameters are given by layer type, those of full_attention.
absl::StatusOr<RopeConfig> ParseRopeConfig(const JsonFields& config, int64_t max_position_embeddings,
                                           std::vector<std::string>& warnings, bool allows_partial = false,
                                           double default_partial_rotary = 1);

// The rotary embedding of the layers with a sliding window of models that have one by layer type: rope_parameters'
// sliding_attention, or plain RoPE with the base rope_local_base_freq, or `default_theta` without that.
absl::StatusOr<RopeConfig> ParseWindowRopeConfig(const JsonFields& config, int64_t max_position_embeddings,
                                                 std::vector<std::string>& warnings, double default_theta);

}  // namespace winnow
