#pragma once
#include "common/base/status.h"
#include "router/generation/generation.h"
#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// Checks a gRPC request and turns it into what Generation takes. INVALID_ARGUMENT names the field; NOT_FOUND for
// another model.
absl::StatusOr<GenerationInput> ParseGenerateRequest(const v1::GenerateRequest& request, const ServedModel& model,
                                                     const TextCodec& codec);

}  // namespace winnow
