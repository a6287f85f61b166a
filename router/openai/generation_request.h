#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/openai/chat_output/message_parser.h"
#include "router/openai/sampling_fields.h"
#include "router/openai/text_codec.h"

namespace winnow {

// A completions or chat completions request, completely checked, with its prompts in token ids.
struct GenerationRequest {
  struct Prompt {
    std::vector<uint32_t> token_ids;
    uint32_t max_tokens = 0;
    std::string echo = {};  // of a completion: text that stands before the answer
  };

  Endpoint endpoint = Endpoint::kCompletions;
  CommonFields fields;
  std::vector<Prompt> prompts;  // choice index = prompt index * n + sample
  std::optional<uint32_t> top_logprobs;
  ChatParsing parsing;                  // of a chat: how its answers become messages
  std::vector<uint32_t> shown_special;  // special tokens that the text is to show, because they mark something
};

// How many tokens a request allows for an answer, and the field that says so.
struct TokenLimit {
  std::optional<int64_t> tokens;  // absent: the request says nothing
  const char* field = "max_tokens";
};

// "max_tokens", or "max_completion_tokens", its newer name, which wins where both are given.
TokenLimit ReadTokenLimit(JsonReader& reader);

// "truncate_prompt_tokens": of a longer prompt, only so many tokens at its end are kept; -1: as many as leave room for
// the answer that `limit` asks for, or for one token.
absl::Status TruncatePrompt(JsonReader& reader, const TokenLimit& limit, const ServedModel& model,
                            std::vector<uint32_t>* token_ids);

// What a prompt may generate, which must be at least `min_tokens`. `given` is the client's limit: it must fit the
// context together with the prompt; without one it is DefaultMaxTokens, at most `fallback`. An empty prompt, or one
// that leaves no room for a token, is an error.
absl::StatusOr<uint32_t> ResolveMaxTokens(size_t prompt_tokens, const TokenLimit& given, uint32_t fallback,
                                          const CommonFields& fields, const ServedModel& model,
                                          std::string_view prompt_name);

}  // namespace winnow
