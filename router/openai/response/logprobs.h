#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "router/generation/text_codec.h"
#include "router/openai/json/json_writer.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

// How a token's bytes are shown where JSON wants text: as they are when they are UTF-8, else as OpenAI does,
// "bytes:\xe2\x80", so that different tokens stay different.
std::string TokenLabel(std::string_view bytes);

// What log probabilities show.
struct LogprobsShown {
  uint32_t top = 0;            // alternatives per token
  bool tokens_as_ids = false;  // "token_id:5" in place of a token's text
};

// The "logprobs" object of a completions choice for consecutive tokens. Without alternatives top_logprobs is null.
// A token without a log probability, as the first of a prompt is, has null. `text_offset` is the number of characters
// of the output before the tokens, and is advanced past them.
void WriteCompletionLogprobs(std::span<const v1::Token> tokens, const LogprobsShown& shown, const TextCodec& codec,
                             size_t* text_offset, JsonWriter* json);

// "prompt_logprobs" as vLLM has it: null for the first token, and for each other one an object of "<id>" to {"logprob",
// "rank", "decoded_token"}, the token itself first and then the `top` most likely ones.
void WritePromptLogprobs(std::span<const v1::Token> tokens, uint32_t top, const TextCodec& codec, JsonWriter* json);

// Tokens as chats list them: a list of objects with token, bytes, logprob and top_logprobs.
void WriteTokenLogprobs(std::span<const v1::Token> tokens, const LogprobsShown& shown, const TextCodec& codec,
                        JsonWriter* json);

// The "logprobs" object of a chat choice.
void WriteChatLogprobs(std::span<const v1::Token> tokens, const LogprobsShown& shown, const TextCodec& codec,
                       JsonWriter* json);

}  // namespace winnow
