#pragma once
#include "common/base/status.h"
#include "router/generation.h"
#include "router/openai/text_codec.h"
#include "router/served_model.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// Checks a gRPC request and turns it into what Generation takes. INVALID_ARGUMENT names the field; NOT_FOUND for
// another model.
absl::StatusOr<GenerationInput> ParseGenerateRequest(const v1::GenerateRequest& request, const ServedModel& model,
                                                     const TextCodec& codec);

}  // namespace winnow
