#pragma once
#include "router/openai/request/generation_request.h"

namespace winnow {

// Body of POST /v1/responses: checked, and read as the chat that says the same. Errors name the fields as they are
// called here.
absl::StatusOr<GenerationRequest> ParseResponsesRequest(const Json& body, const ServedModel& model,
                                                        const TextCodec& codec);

}  // namespace winnow
