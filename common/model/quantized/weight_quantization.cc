#include "common/model/quantized/weight_quantization.h"

#include <algorithm>
#include <optional>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/model/safetensors_header.h"

namespace winnow {
namespace {

using nlohmann::json;
using Format = WeightQuantization::Format;

constexpr int64_t kMaxGroup = 1 << 20;
constexpr const char kPattern[] = "re:";
constexpr size_t kMaxPattern = 256;  // std::regex parses by recursion

constexpr std::string_view kSupported =
    "supported are fp8, fbgemm_fp8, gptq, awq, mxfp4, and compressed-tensors as float-quantized, int-quantized or "
    "pack-quantized";

absl::Status CheckPattern(const JsonFields& fields, const char* field, const std::string& name) {
  absl::string_view pattern = name;
  if (!absl::ConsumePrefix(&pattern, kPattern)) return absl::OkStatus();
  if (pattern.size() > kMaxPattern) {
    return fields.Error(field, absl::StrCat("holds ", QuotedName(name), ", which is longer than ", kMaxPattern));
  }
  try {
    std::regex(pattern.begin(), pattern.end());
  } catch (const std::regex_error& error) {
    return fields.Error(field,
                        absl::StrCat("holds ", QuotedName(name), ", which is no regular expression: ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status ParseUnconverted(const JsonFields& fields, const char* field, WeightQuantization& out) {
  WINNOW_ASSIGN_OR_RETURN(const json* names, fields.Array(field));
  if (names == nullptr) return absl::OkStatus();
  for (const json& name : *names) {
    if (!name.is_string()) return fields.Error(field, "must hold names of modules");
    out.unconverted.push_back(name.get<std::string>());
    WINNOW_RETURN_IF_ERROR(CheckPattern(fields, field, out.unconverted.back()));
  }
  return absl::OkStatus();
}

absl::Status CheckIs(const JsonFields& fields, const char* field, std::string_view supported) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> value, fields.String(field));
  if (!value.has_value() || *value == supported) return absl::OkStatus();
  return fields.Error(field, absl::StrCat("is ", QuotedName(*value), "; only ", AbslSv(supported), " is supported"));
}

// Inputs by scale; 0 for -1 and absent.
absl::StatusOr<int> GroupSize(const JsonFields& fields, const char* field) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> size, fields.Int(field, -1, kMaxGroup));
  if (size.value_or(-1) == -1) return 0;
  if (*size == 0 || *size % 32 != 0) {
    return fields.Error(field, absl::StrCat("is ", *size, "; supported are -1 and multiples of 32"));
  }
  return static_cast<int>(*size);
}

absl::StatusOr<int> Bits(const JsonFields& fields, const char* field, std::vector<int> supported) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> bits, fields.Int(field, 1, 64));
  if (!bits.has_value()) return fields.Error(field, "is missing");
  if (std::find(supported.begin(), supported.end(), *bits) == supported.end()) {
    return fields.Error(field, absl::StrCat("is ", *bits, "; supported is ", supported[0],
                                            supported.size() > 1 ? absl::StrCat(" and ", supported[1]) : ""));
  }
  return static_cast<int>(*bits);
}

absl::Status ParseBlocks(const JsonFields& fields, const char* field, WeightQuantization& out) {
  WINNOW_ASSIGN_OR_RETURN(const json* block, fields.Array(field));
  if (block == nullptr) {
    out.block_is_known = false;
    return absl::OkStatus();
  }
  const auto is_size = [](const json& size) {
    return size.is_number_integer() && size.get<int64_t>() >= 1 && size.get<int64_t>() <= kMaxGroup;
  };
  if (block->size() != 2 || !is_size((*block)[0]) || !is_size((*block)[1]) || (*block)[1].get<int>() % 32 != 0) {
    return fields.Error(field,
                        absl::StrCat("is ", block->dump(), "; supported are two sizes, the second a multiple of 32"));
  }
  out.block_rows = (*block)[0].get<int>();
  out.block_columns = (*block)[1].get<int>();
  return absl::OkStatus();
}

absl::Status ParseFp8(const JsonFields& fields, WeightQuantization& out) {
  out.format = Format::kFp8;
  out.bits = 8;
  WINNOW_RETURN_IF_ERROR(CheckIs(fields, "fmt", "e4m3"));
  WINNOW_RETURN_IF_ERROR(ParseBlocks(fields, "weight_block_size", out));
  WINNOW_RETURN_IF_ERROR(ParseUnconverted(fields, "ignored_layers", out));
  return ParseUnconverted(fields, "modules_to_not_convert", out);
}

absl::Status ParseGptq(const JsonFields& fields, WeightQuantization& out) {
  out.format = Format::kGptq;
  out.has_zeros = true;
  WINNOW_ASSIGN_OR_RETURN(out.bits, Bits(fields, "bits", {4, 8}));
  WINNOW_ASSIGN_OR_RETURN(out.block_columns, GroupSize(fields, "group_size"));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> layout, fields.String("checkpoint_format"));
  if (layout.has_value() && *layout != "gptq" && *layout != "gptq_v2") {
    return fields.Error("checkpoint_format",
                        absl::StrCat("is ", QuotedName(*layout), "; supported are gptq and gptq_v2"));
  }
  out.zeros_lack_one = layout.value_or("gptq") == "gptq";
  WINNOW_ASSIGN_OR_RETURN(const json* dynamic, fields.Object("dynamic"));
  if (dynamic == nullptr) return absl::OkStatus();
  for (auto entry = dynamic->begin(); entry != dynamic->end(); ++entry) {
    if (!absl::StartsWith(entry.key(), "-:")) {
      return fields.Error("dynamic", absl::StrCat("changes ", QuotedName(entry.key()),
                                                  "; only patterns that begin with -: are supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseAwq(const JsonFields& fields, WeightQuantization& out) {
  out.format = Format::kAwq;
  out.has_zeros = true;
  WINNOW_ASSIGN_OR_RETURN(out.bits, Bits(fields, fields.Has("w_bit") ? "w_bit" : "bits", {4}));
  WINNOW_ASSIGN_OR_RETURN(out.block_columns,
                          GroupSize(fields, fields.Has("q_group_size") ? "q_group_size" : "group_size"));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> version, fields.String("version"));
  if (version.has_value() && absl::AsciiStrToLower(*version) != "gemm") {
    return fields.Error("version", absl::StrCat("is ", QuotedName(*version), "; only gemm is supported"));
  }
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> zero_point, fields.Bool("zero_point"));
  if (!zero_point.value_or(true)) return fields.Error("zero_point", "is false; only true is supported");
  return ParseUnconverted(fields, "modules_to_not_convert", out);
}

absl::Status ParseGroupWeights(const JsonFields& weights, Format format, WeightQuantization& out) {
  WINNOW_RETURN_IF_ERROR(CheckIs(weights, "type", format == Format::kFp8 ? "float" : "int"));
  WINNOW_ASSIGN_OR_RETURN(
      out.bits, Bits(weights, "num_bits", format == Format::kPacked ? std::vector<int>{4, 8} : std::vector<int>{8}));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> symmetric, weights.Bool("symmetric"));
  out.has_zeros = format != Format::kFp8 && !symmetric.value_or(true);
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> given, weights.String("strategy"));
  const std::string strategy = given.value_or(weights.Has("group_size") ? "group" : "tensor");
  if (strategy == "tensor") {
    out.block_rows = 0;
  } else if (strategy == "block") {
    if (!weights.Has("block_structure")) return weights.Error("block_structure", "is missing");
    return ParseBlocks(weights, "block_structure", out);
  } else if (strategy == "group") {
    WINNOW_ASSIGN_OR_RETURN(out.block_columns, GroupSize(weights, "group_size"));
  } else if (strategy != "channel") {
    return weights.Error("strategy",
                         absl::StrCat("is ", QuotedName(strategy), "; supported are tensor, channel, group and block"));
  }
  return absl::OkStatus();
}

absl::Status ParseCompressedTensors(const JsonFields& fields, WeightQuantization& out) {
  WINNOW_ASSIGN_OR_RETURN(const json* groups, fields.Object("config_groups"));
  if (groups == nullptr || groups->size() != 1) {
    return fields.Error("config_groups", "must hold one group: layers of several formats are not supported");
  }
  const json& group = *groups->begin();
  if (!group.is_object()) return fields.Error("config_groups", "must hold objects");
  const JsonFields group_fields = fields.Nested(*groups, "config_groups").Nested(group, groups->begin().key());
  WINNOW_ASSIGN_OR_RETURN(const json* targets, group_fields.Array("targets"));
  if (targets != nullptr && *targets != json::array({"Linear"})) {
    return group_fields.Error("targets", absl::StrCat("is ", targets->dump(), "; only [\"Linear\"] is supported"));
  }
  WINNOW_ASSIGN_OR_RETURN(std::optional<std::string> format, group_fields.String("format"));
  if (!format.has_value()) {
    WINNOW_ASSIGN_OR_RETURN(format, fields.String("format"));
  }
  if (format == "float-quantized") {
    out.format = Format::kFp8;
  } else if (format == "int-quantized") {
    out.format = Format::kInt8;
  } else if (format == "pack-quantized") {
    out.format = Format::kPacked;
  } else {
    return fields.Error("format", absl::StrCat("is ", QuotedName(format.value_or("")), "; ", AbslSv(kSupported)));
  }
  WINNOW_ASSIGN_OR_RETURN(const json* sparsity, fields.Object("sparsity_config"));
  if (sparsity != nullptr) {
    WINNOW_RETURN_IF_ERROR(CheckIs(fields.Nested(*sparsity, "sparsity_config"), "format", "dense"));
  }
  WINNOW_RETURN_IF_ERROR(ParseUnconverted(fields, "ignore", out));
  WINNOW_ASSIGN_OR_RETURN(const json* weights, group_fields.Object("weights"));
  if (weights == nullptr) return group_fields.Error("weights", "is missing");
  return ParseGroupWeights(group_fields.Nested(*weights, "weights"), out.format, out);
}

}  // namespace

bool WeightQuantization::Converts(std::string_view module) const {
  if (format == Format::kNone) return false;
  const std::string dotted = absl::StrCat(".", AbslSv(module), ".");
  return std::none_of(unconverted.begin(), unconverted.end(), [&](const std::string& entry) {
    absl::string_view pattern = entry;
    if (absl::ConsumePrefix(&pattern, kPattern)) {
      return std::regex_search(module.begin(), module.end(), std::regex(pattern.begin(), pattern.end()),
                               std::regex_constants::match_continuous);
    }
    absl::ConsumeSuffix(&pattern, ".");
    return absl::StrContains(dotted, absl::StrCat(".", pattern, "."));
  });
}

absl::StatusOr<WeightQuantization> ParseWeightQuantization(const JsonFields& config) {
  WeightQuantization out;
  WINNOW_ASSIGN_OR_RETURN(const json* object, config.Object("quantization_config"));
  if (object == nullptr) return out;
  const JsonFields fields = config.Nested(*object, "quantization_config");
  WINNOW_ASSIGN_OR_RETURN(const std::optional<std::string> method, fields.String("quant_method"));
  if (!method.has_value()) return fields.Error("quant_method", absl::StrCat("is missing; ", AbslSv(kSupported)));
  out.method = *method;
  if (*method == "fp8" || *method == "fbgemm_fp8") {
    WINNOW_RETURN_IF_ERROR(ParseFp8(fields, out));
  } else if (*method == "gptq") {
    WINNOW_RETURN_IF_ERROR(ParseGptq(fields, out));
  } else if (*method == "awq") {
    WINNOW_RETURN_IF_ERROR(ParseAwq(fields, out));
  } else if (*method == "compressed-tensors") {
    WINNOW_RETURN_IF_ERROR(ParseCompressedTensors(fields, out));
  } else if (*method == "mxfp4") {
    out.format = Format::kMxfp4;
    out.bits = 4;
    WINNOW_RETURN_IF_ERROR(ParseUnconverted(fields, "modules_to_not_convert", out));
  } else {
    return fields.Error("quant_method", absl::StrCat("is ", QuotedName(*method), "; ", AbslSv(kSupported)));
  }
  return out;
}

}  // namespace winnow
