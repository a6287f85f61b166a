#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "router/generation.h"
#include "router/served_model.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// What a request may ask for; the same for HTTP and gRPC. Every error is INVALID_ARGUMENT and begins with the field's
// name, as both APIs spell it ("temperature: ..."), but for an unknown model, which is NOT_FOUND.

inline constexpr uint32_t kMaxSamples = 128;
inline constexpr uint32_t kMaxTopLogprobs = 20;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr size_t kMaxLogitBiases = 1024;
inline constexpr size_t kMaxRequestIdBytes = 128;

// An absent model is the one that is served.
absl::Status CheckModelName(const std::optional<std::string>& name, const ServedModel& model);
absl::Status CheckSampling(const v1::SamplingParams& sampling, const ServedModel& model);

// `max_tokens` as the request has it, or what is left of the context; never more than that. An error when the prompt
// leaves no room.
absl::StatusOr<uint32_t> ResolveMaxTokens(std::optional<uint32_t> max_tokens, size_t prompt_tokens,
                                          const ServedModel& model);

// The server's selection with what the request changes of it.
absl::StatusOr<SelectionSpec> ResolveSelection(const v1::SelectionOptions& options, const ServedModel& model);

// Everything that the functions above do not look at, and the sampling: both front ends call it before
// Generation::Start.
absl::Status CheckGenerationInput(const GenerationInput& input, const ServedModel& model);

}  // namespace winnow
