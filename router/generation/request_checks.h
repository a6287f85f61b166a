#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "router/generation/generation.h"
#include "router/generation/served_model.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// What a request may ask for; the same for HTTP and gRPC. Every error is INVALID_ARGUMENT and begins with the field's
// name, as both APIs spell it ("temperature: ..."), but for an unknown model, which is NOT_FOUND.

// Bounds of what one request may hold.
struct RequestLimits {
  static constexpr uint32_t kSamples = 128;
  static constexpr uint32_t kTopLogprobs = 20;
  static constexpr size_t kStopStrings = 16;
  static constexpr size_t kStopStringBytes = 1024;
  static constexpr size_t kStopTokenIds = 64;
  static constexpr size_t kLogitBiases = 4096;
  static constexpr size_t kBadWords = 1024;  // sequences of tokens
  static constexpr size_t kRequestIdBytes = 128;
  static constexpr int64_t kPriority = 100;  // and down to its negative
  static constexpr uint32_t kFewestTraceParts = 8;
  static constexpr uint32_t kMostTraceParts = 512;
};

absl::Status CheckRequestId(const std::string& id);
// An absent model is the one that is served.
absl::Status CheckModelName(const std::optional<std::string>& name, const ServedModel& model);
absl::Status CheckSampling(const v1::SamplingParams& sampling, const ServedModel& model);

// `max_tokens` as the request has it, or DefaultMaxTokens. An error when prompt and output do not fit the context.
absl::StatusOr<uint32_t> LimitMaxTokens(std::optional<uint32_t> max_tokens, size_t prompt_tokens,
                                        const SelectionSpec& selection, const ServedModel& model);

// Everything that the functions above do not look at, and the sampling: both front ends call it before
// Generation::Start.
absl::Status CheckGenerationInput(const GenerationInput& input, const ServedModel& model);

}  // namespace winnow
