#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/chat_output/message_parser.h"
#include "router/generation/text_codec.h"
#include "router/openai/request/sampling_fields.h"

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
  bool echoes_logprobs = false;  // of a completion with `echo`: its log probabilities begin with the prompt's
  std::optional<uint32_t> prompt_logprobs;  // a response has those of the prompt, and so many alternatives, apart
  bool drops_answer = false;                // nothing is wanted but the prompt: the token that is drawn is not told
  ChatParsing parsing;                      // of a chat: how its answers become messages
  Json echoed = {};                         // of a Responses request: what its response repeats
  std::vector<uint32_t> shown_special;      // special tokens that the text is to show, because they mark something
};

// The ids that TextCodec::EncodeAtMost gave for the prompt in the field `name`, or its error as an API error.
// OUT_OF_RANGE becomes the error of a prompt that the model's context does not hold.
absl::StatusOr<std::vector<uint32_t>> CheckedPrompt(absl::StatusOr<std::vector<uint32_t>> encoded,
                                                    const ServedModel& model, std::string_view name);

// How many tokens a request allows for an answer, and the field that says so.
struct TokenLimit {
  std::optional<int64_t> tokens;  // absent: the request says nothing
  const char* field = "max_tokens";
};

// "max_tokens", or "max_completion_tokens", its newer name, which wins where both are given; `lowest` or more.
TokenLimit ReadTokenLimit(JsonReader& reader, int64_t lowest = 1);

// "prompt_logprobs": how many alternatives; not in a stream.
std::optional<uint32_t> ReadPromptLogprobs(JsonReader& reader, bool stream);

// The model whose context bounds the request's prompts already while they are tokenized; null with
// "truncate_prompt_tokens", which makes a prompt of any length fit.
const ServedModel* PromptBound(const Json& body, const ServedModel& model);

// "truncate_prompt_tokens": of a longer prompt, only so many tokens at its end are kept; -1: as many as leave room for
// the answer that `limit` asks for, or for one token.
absl::Status TruncatePrompt(JsonReader& reader, const TokenLimit& limit, const ServedModel& model,
                            std::vector<uint32_t>* token_ids);

// What a prompt may generate. `given` is the client's limit: it must fit the context together with the prompt; without
// one it is DefaultMaxTokens, at most `fallback`. An empty prompt, or one that leaves no room for a token, is an error.
absl::StatusOr<uint32_t> ResolveMaxTokens(size_t prompt_tokens, const TokenLimit& given, uint32_t fallback,
                                          const SelectionSpec& selection, const ServedModel& model,
                                          std::string_view prompt_name);

}  // namespace winnow
