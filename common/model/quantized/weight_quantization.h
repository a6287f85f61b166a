#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"

namespace winnow {

// How a checkpoint stores the weights of its linear layers: the `quantization_config` of config.json. What it says of
// activations is not read: they are not quantised.
struct WeightQuantization {
  enum class Format : uint8_t {
    kNone,
    kFp8,     // e4m3 and scales for blocks, rows or the whole matrix
    kInt8,    // signed bytes, as compressed-tensors' int-quantized
    kGptq,    // words along the inputs
    kAwq,     // words along the outputs, interleaved
    kPacked,  // words along the inputs, row by row, as compressed-tensors' pack-quantized
    kMxfp4,   // of the experts of gpt-oss alone (mxfp4.h)
  };

  Format format = Format::kNone;
  std::string method;  // as config.json names it, for errors
  int bits = 0;        // of a code
  // Weights that share a scale: so many outputs by so many inputs. 0: all of them.
  int block_rows = 1;
  int block_columns = 0;
  bool block_is_known = true;  // else by the shape of the scales: one, or one for each output
  bool has_zeros = false;
  bool zeros_lack_one = false;           // GPTQ's first version
  std::vector<std::string> unconverted;  // names of modules, and "re:" patterns

  // Whether the module of that name (that of its tensor without ".weight") may be stored in this format.
  bool Converts(std::string_view module) const;
};

// Parses `quantization_config` of config.json; absent, nothing is quantised. INVALID_ARGUMENT names what is not
// supported, and what is.
absl::StatusOr<WeightQuantization> ParseWeightQuantization(const JsonFields& config);

}  // namespace winnow
