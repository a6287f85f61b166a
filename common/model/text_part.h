#pragma once
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "common/model/json_fields.h"

// Multimodal checkpoints whose language model is of a family that is served. Their config.json has it as `text_config`,
// and its tensors have names of their own; what sees or hears is left out.

namespace winnow {

// The architecture of such a checkpoint, that of its language model, and what transformers' class for the latter takes
// where a field is missing, as a JSON object: published checkpoints leave out most.
struct MultimodalTraits {
  const char* architecture;
  const char* text_architecture;
  const char* text_defaults = "{}";
};
// Null where `config` is not of one.
const MultimodalTraits* MultimodalTraitsOf(const JsonFields& config);

// What config.json would say if the language model were stored alone: its fields, the defaults of those that are
// missing, and tokens and quantisation, which stand beside it.
absl::StatusOr<nlohmann::json> TextPart(const JsonFields& config, const MultimodalTraits& traits);

// Takes out of RoPE's parameters which pairs turn by which part of an image's position: the parts of a text's position
// are equal, so that its rotation is the usual one.
void DropRotationOfImages(nlohmann::json& config);

// The name that a tensor of the language model has where that is stored alone; any other name as it is.
std::string TextTensorName(std::string_view name);

// For messages: "the language models of A and B".
std::string SupportedMultimodal();

}  // namespace winnow
