#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "router/generation/text_codec.h"
#include "router/openai/sampling_fields.h"

namespace winnow {

// A completions or chat completions request, completely checked, with its prompts in token ids.
struct GenerationRequest {
  struct Prompt {
    std::vector<uint32_t> token_ids;
    uint32_t max_tokens = 0;
  };

  Endpoint endpoint = Endpoint::kCompletions;
  CommonFields fields;
  std::vector<Prompt> prompts;  // choice index = prompt index * n + sample
  std::optional<uint32_t> top_logprobs;
};

// The ids that TextCodec::EncodeAtMost gave for the prompt in the field `name`, or its error as an API error.
// OUT_OF_RANGE becomes the error of a prompt that the model's context does not hold.
absl::StatusOr<std::vector<uint32_t>> CheckedPrompt(absl::StatusOr<std::vector<uint32_t>> encoded,
                                                    const ServedModel& model, std::string_view name);

// What a prompt may generate. `given` is the client's limit: it must fit the context together with the prompt; without
// one it is DefaultMaxTokens, at most `fallback`. An empty prompt, or one that leaves no room for a token, is an error.
absl::StatusOr<uint32_t> ResolveMaxTokens(size_t prompt_tokens, std::optional<int64_t> given,
                                          std::string_view given_name, uint32_t fallback,
                                          const SelectionSpec& selection, const ServedModel& model,
                                          std::string_view prompt_name);

}  // namespace winnow
