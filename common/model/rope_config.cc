#include "common/model/rope_config.h"

#include <array>
#include <set>
#include <string_view>

#include "common/base/status.h"
#include "common/model/safetensors_header.h"

namespace winnow {
namespace {

constexpr int64_t kMaxRopePositions = int64_t{1} << 31;

struct RopeSource {
  const nlohmann::json* object = nullptr;  // null: plain RoPE
  const char* name = "rope_parameters";
};

absl::StatusOr<RopeSource> FindSource(const JsonFields& config) {
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* scaling, config.Object("rope_scaling"));
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* parameters, config.Object("rope_parameters"));
  if (scaling != nullptr && !scaling->empty()) return RopeSource{scaling, "rope_scaling"};
  return RopeSource{parameters, "rope_parameters"};
}

absl::StatusOr<RopeType> ParseType(const JsonFields& rope) {
  WINNOW_ASSIGN_OR_RETURN(std::optional<std::string> name, rope.String("rope_type"));
  const char* field = "rope_type";
  if (!name.has_value()) {
    WINNOW_ASSIGN_OR_RETURN(name, rope.String("type"));
    field = "type";
  }
  if (!name.has_value()) return RopeType::kDefault;
  for (const RopeType type : {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic, RopeType::kLlama3,
                              RopeType::kYarn, RopeType::kLongRope}) {
    if (*name == RopeTypeName(type)) return type;
  }
  if (*name == "su") return RopeType::kLongRope;  // as it was called at first
  return rope.Error(field, absl::StrCat("is ", QuotedName(*name),
                                        "; supported are default, linear, dynamic, llama3, yarn and longrope"));
}

// Far beyond what any model uses, and far from where f32 arithmetic on frequencies breaks down.
constexpr double kMinTheta = 1.001;
constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;
constexpr double kMinFactor = 1e-6;

absl::StatusOr<double> RequiredNumber(const JsonFields& fields, const char* name, double low, double high) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> value, fields.Number(name));
  if (!value.has_value()) return fields.Error(name, "is missing");
  if (*value < low || *value > high) {
    return fields.Error(name, absl::StrCat("is ", *value, ", outside the supported range ", low, " to ", high));
  }
  return *value;
}

absl::StatusOr<double> Factor(const JsonFields& fields, const char* name) {
  return RequiredNumber(fields, name, kMinFactor, kMaxFactor);
}

// The base of the frequencies; YaRN divides by its logarithm.
absl::StatusOr<double> Theta(const JsonFields& fields) {
  return RequiredNumber(fields, "rope_theta", kMinTheta, kMaxTheta);
}

// Families whose heads turn as a whole have no other share.
absl::StatusOr<double> PartialRotary(const JsonFields& fields, bool allows_partial, double otherwise) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<double> partial, fields.Number("partial_rotary_factor"));
  if (partial.value_or(otherwise) == otherwise) return otherwise;
  if (!allows_partial) {
    return fields.Error("partial_rotary_factor", absl::StrCat("is ", *partial, "; only 1 is supported"));
  }
  if (*partial > 0 && *partial <= 1) return *partial;
  return fields.Error("partial_rotary_factor", absl::StrCat("is ", *partial, "; it must be above 0 and at most 1"));
}

// Where it was pretrained: a field of the whole config first, then of the RoPE parameters, then
// max_position_embeddings.
absl::StatusOr<int64_t> OriginalPositions(const JsonFields& config, const JsonFields& rope,
                                          int64_t max_position_embeddings) {
  constexpr const char* kField = "original_max_position_embeddings";
  WINNOW_ASSIGN_OR_RETURN(std::optional<int64_t> positions, config.Int(kField, 1, kMaxRopePositions));
  if (!positions.has_value()) {
    WINNOW_ASSIGN_OR_RETURN(positions, rope.Int(kField, 1, kMaxRopePositions));
  }
  return positions.value_or(max_position_embeddings);
}

absl::Status ParseLlama3(const JsonFields& config, const JsonFields& rope, int64_t max_position_embeddings,
                         RopeConfig& out) {
  WINNOW_ASSIGN_OR_RETURN(out.factor, Factor(rope, "factor"));
  WINNOW_ASSIGN_OR_RETURN(out.low_freq_factor, Factor(rope, "low_freq_factor"));
  WINNOW_ASSIGN_OR_RETURN(out.high_freq_factor, Factor(rope, "high_freq_factor"));
  if (out.high_freq_factor <= out.low_freq_factor)
    return rope.Error("high_freq_factor", "must be above low_freq_factor");
  WINNOW_ASSIGN_OR_RETURN(out.original_max_position_embeddings,
                          OriginalPositions(config, rope, max_position_embeddings));
  return absl::OkStatus();
}

absl::Status ParseYarn(const JsonFields& config, const JsonFields& rope, int64_t max_position_embeddings,
                       RopeConfig& out) {
  WINNOW_ASSIGN_OR_RETURN(out.original_max_position_embeddings,
                          OriginalPositions(config, rope, max_position_embeddings));
  if (rope.Has("factor")) {
    WINNOW_ASSIGN_OR_RETURN(out.factor, Factor(rope, "factor"));
  } else {
    out.factor =
        static_cast<double>(max_position_embeddings) / static_cast<double>(out.original_max_position_embeddings);
  }
  if (rope.Has("attention_factor")) {
    WINNOW_ASSIGN_OR_RETURN(out.attention_factor, RequiredNumber(rope, "attention_factor", 0, kMaxFactor));
  }
  // Zero means "not given" for these four, as in transformers.
  struct Optional {
    const char* name;
    double* value;
  };
  for (const Optional field : {Optional{"mscale", &out.mscale}, Optional{"mscale_all_dim", &out.mscale_all_dim},
                               Optional{"beta_fast", &out.beta_fast}, Optional{"beta_slow", &out.beta_slow}}) {
    if (!rope.Has(field.name)) continue;
    WINNOW_ASSIGN_OR_RETURN(const double value, RequiredNumber(rope, field.name, 0, kMaxFactor));
    if (value != 0) *field.value = value;
  }
  if (out.beta_fast < out.beta_slow) return rope.Error("beta_fast", "must not be below beta_slow");
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> truncate, rope.Bool("truncate"));
  out.truncate = truncate.value_or(true);
  return absl::OkStatus();
}

// One divisor for each pair that turns, whose number the caller compares with the model's heads.
absl::StatusOr<std::vector<double>> Divisors(const JsonFields& rope, const char* field) {
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* list, rope.Array(field));
  if (list == nullptr) return rope.Error(field, "is missing");
  std::vector<double> divisors;
  for (const nlohmann::json& value : *list) {
    if (!value.is_number() || value.get<double>() < kMinFactor || value.get<double>() > kMaxFactor) {
      return rope.Error(field, absl::StrCat("holds ", value.dump().substr(0, 60), "; it must hold numbers from ",
                                            kMinFactor, " to ", kMaxFactor));
    }
    divisors.push_back(value.get<double>());
  }
  return divisors;
}

// `factor` is by how much the context grew, where no field says so.
absl::Status ParseLongRope(const JsonFields& config, const JsonFields& rope, int64_t max_position_embeddings,
                           RopeConfig& out) {
  if (!config.Has("original_max_position_embeddings") && !rope.Has("original_max_position_embeddings")) {
    return rope.Error("original_max_position_embeddings", "is missing, which longrope needs");
  }
  WINNOW_ASSIGN_OR_RETURN(out.original_max_position_embeddings,
                          OriginalPositions(config, rope, max_position_embeddings));
  WINNOW_ASSIGN_OR_RETURN(out.short_factors, Divisors(rope, "short_factor"));
  WINNOW_ASSIGN_OR_RETURN(out.long_factors, Divisors(rope, "long_factor"));
  out.factor = static_cast<double>(max_position_embeddings) / static_cast<double>(out.original_max_position_embeddings);
  if (rope.Has("factor")) {
    WINNOW_ASSIGN_OR_RETURN(out.factor, Factor(rope, "factor"));
  }
  if (rope.Has("attention_factor")) {
    WINNOW_ASSIGN_OR_RETURN(out.attention_factor, RequiredNumber(rope, "attention_factor", 0, kMaxFactor));
  }
  out.beyond_original = max_position_embeddings > out.original_max_position_embeddings;
  return absl::OkStatus();
}

// Fields of other models' rotary embeddings that change frequencies or scores.
absl::Status RefuseOtherFields(const JsonFields& rope) {
  for (const char* field : {"mrope_section", "mrope_interleaved", "llama_4_scaling_beta", "short_mscale", "long_mscale",
                            "alpha", "xdrope_section"}) {
    if (!rope.Has(field) || rope.object()[field] == false) continue;
    return rope.Error(field,
                      absl::StrCat("is ", rope.object()[field].dump().substr(0, 60), ", which is not supported"));
  }
  return absl::OkStatus();
}

void WarnOfUnknownFields(const JsonFields& rope, std::vector<std::string>& warnings) {
  static const std::set<std::string_view> kKnown = {"rope_type",
                                                    "type",
                                                    "rope_theta",
                                                    "factor",
                                                    "original_max_position_embeddings",
                                                    "low_freq_factor",
                                                    "high_freq_factor",
                                                    "attention_factor",
                                                    "mscale",
                                                    "mscale_all_dim",
                                                    "beta_fast",
                                                    "beta_slow",
                                                    "truncate",
                                                    "short_factor",
                                                    "long_factor",
                                                    "mrope_interleaved",
                                                    "partial_rotary_factor"};
  for (const auto& [key, value] : rope.object().items()) {
    if (!kKnown.contains(key))
      warnings.push_back(absl::StrCat(rope.Path(QuotedName(key)), " is not known and is ignored"));
  }
}

// One object of RoPE parameters; `base` has what holds where it says nothing.
absl::StatusOr<RopeConfig> ParseParameters(const JsonFields& config, const JsonFields& rope, RopeConfig out,
                                           int64_t max_position_embeddings, bool allows_partial,
                                           std::vector<std::string>& warnings) {
  WINNOW_RETURN_IF_ERROR(RefuseOtherFields(rope));
  WINNOW_ASSIGN_OR_RETURN(out.partial_rotary, PartialRotary(rope, allows_partial, out.partial_rotary));
  if (rope.Has("rope_theta")) {
    WINNOW_ASSIGN_OR_RETURN(out.theta, Theta(rope));
  }
  WINNOW_ASSIGN_OR_RETURN(out.type, ParseType(rope));
  switch (out.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
    case RopeType::kDynamic: {
      WINNOW_ASSIGN_OR_RETURN(out.factor, Factor(rope, "factor"));
      break;
    }
    case RopeType::kLlama3:
      WINNOW_RETURN_IF_ERROR(ParseLlama3(config, rope, max_position_embeddings, out));
      break;
    case RopeType::kYarn:
      WINNOW_RETURN_IF_ERROR(ParseYarn(config, rope, max_position_embeddings, out));
      break;
    case RopeType::kLongRope:
      WINNOW_RETURN_IF_ERROR(ParseLongRope(config, rope, max_position_embeddings, out));
      break;
  }
  if (rope.Has("factor") && out.factor < 1) {
    warnings.push_back(absl::StrCat(rope.Path("factor"), " is ", out.factor, ", below 1"));
  }
  WarnOfUnknownFields(rope, warnings);
  return out;
}

}  // namespace

const char* RopeTypeName(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kDynamic:
      return "dynamic";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kLongRope:
      return "longrope";
  }
  return "unknown";
}

absl::StatusOr<RopeConfig> ParseRopeConfig(const JsonFields& config, int64_t max_position_embeddings,
                                           std::vector<std::string>& warnings, bool allows_partial,
                                           double default_partial_rotary) {
  WINNOW_ASSIGN_OR_RETURN(const RopeSource source, FindSource(config));
  RopeConfig base;
  WINNOW_ASSIGN_OR_RETURN(base.partial_rotary, PartialRotary(config, allows_partial, default_partial_rotary));
  if (config.Has("rope_theta")) {
    WINNOW_ASSIGN_OR_RETURN(base.theta, Theta(config));
  }
  if (source.object == nullptr) return base;
  const JsonFields rope = config.Nested(*source.object, source.name);
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* full, rope.Object("full_attention"));
  return ParseParameters(config, full == nullptr ? rope : rope.Nested(*full, "full_attention"), base,
                         max_position_embeddings, allows_partial, warnings);
}

absl::StatusOr<RopeConfig> ParseWindowRopeConfig(const JsonFields& config, int64_t max_position_embeddings,
                                                 std::vector<std::string>& warnings, double default_theta) {
  WINNOW_ASSIGN_OR_RETURN(const RopeSource source, FindSource(config));
  RopeConfig base{.theta = default_theta};
  if (source.object != nullptr) {
    const JsonFields rope = config.Nested(*source.object, source.name);
    WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* window, rope.Object("sliding_attention"));
    if (window != nullptr) {
      return ParseParameters(config, rope.Nested(*window, "sliding_attention"), base, max_position_embeddings,
                             /*allows_partial=*/false, warnings);
    }
  }
  if (config.Has("rope_local_base_freq")) {
    WINNOW_ASSIGN_OR_RETURN(base.theta, RequiredNumber(config, "rope_local_base_freq", kMinTheta, kMaxTheta));
  }
  return base;
}

}  // namespace winnow
