#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "router/generation/generation.h"
#include "winnow/v1/resume_token.pb.h"

namespace winnow {

// Of a request whose seed is set; with a key that nobody can guess.
v1::ResumeToken NewResumeToken(std::string_view cluster, const GenerationInput& input);

std::string EncodeResumeToken(v1::ResumeToken token);
// INVALID_ARGUMENT when it is none.
absl::StatusOr<v1::ResumeToken> DecodeResumeToken(std::string_view text);

// Whether the caller may do anything with it here: INVALID_ARGUMENT for a token of another cluster, PERMISSION_DENIED
// for one of another tenant, NOT_FOUND for one that has expired.
absl::Status CheckResumeToken(const v1::ResumeToken& token, std::string_view cluster, const std::string& tenant,
                              std::chrono::system_clock::time_point now);
// INVALID_ARGUMENT when it was not made for this request. Limits that depend on the ranks that are there, as max_tokens
// may, are not compared: an output that a rank still has keeps its own.
absl::Status CheckResumesRequest(const v1::ResumeToken& token, const GenerationInput& input);

// What ranks know an output by.
std::string ResumeKeyOf(const v1::ResumeToken& token, uint32_t output_index);

}  // namespace winnow
