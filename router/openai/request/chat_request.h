#pragma once
#include "router/openai/request/generation_request.h"

namespace winnow {

// Body of POST /v1/chat/completions. "max_completion_tokens" wins over its old name "max_tokens" when both are given;
// without either, an answer may fill the context.
absl::StatusOr<GenerationRequest> ParseChatRequest(const Json& body, const ServedModel& model, const TextCodec& codec);

}  // namespace winnow
