#pragma once
#include "router/openai/request/generation_request.h"

namespace winnow {

inline constexpr uint32_t kDefaultCompletionTokens = 16;  // OpenAI's

// Body of POST /v1/completions. `prompt` is a string, a list of strings, a list of token ids, or a list of lists of
// token ids.
absl::StatusOr<GenerationRequest> ParseCompletionRequest(const Json& body, const ServedModel& model,
                                                         const TextCodec& codec);

}  // namespace winnow
