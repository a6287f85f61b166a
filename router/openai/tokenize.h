#pragma once
#include <string>

#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "router/openai/json/json_document.h"

namespace winnow {

// POST /tokenize: {"prompt": text} or {"messages": [...]} -> {"count", "max_model_len", "tokens"}.
absl::StatusOr<std::string> TokenizeJson(const Json& body, const ServedModel& model, const TextCodec& codec);

// POST /detokenize: {"tokens": [ids]} -> {"prompt"}. Special tokens are written out.
absl::StatusOr<std::string> DetokenizeJson(const Json& body, const ServedModel& model, const TextCodec& codec);

}  // namespace winnow
