#pragma once
#include <string>

#include "router/openai/json_document.h"
#include "router/openai/text_codec.h"
#include "router/served_model.h"

namespace winnow {

// POST /tokenize: {"prompt": text} or {"messages": [...]} -> {"count", "max_model_len", "tokens"}.
absl::StatusOr<std::string> TokenizeJson(const Json& body, const ServedModel& model, const TextCodec& codec);

// POST /detokenize: {"tokens": [ids]} -> {"prompt"}. Special tokens are written out.
absl::StatusOr<std::string> DetokenizeJson(const Json& body, const ServedModel& model, const TextCodec& codec);

}  // namespace winnow
