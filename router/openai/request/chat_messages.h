#pragma once
#include <cstdint>
#include <vector>

#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "router/openai/json/json_document.h"

namespace winnow {

struct Conversation {
  std::vector<uint32_t> token_ids;
  // The prompt ends inside reasoning: the template has written <think> for the model.
  bool ends_in_reasoning = false;
};

// The prompt of a conversation in token ids, from "messages", "add_generation_prompt" (default true),
// "continue_final_message" (default false: with it the prompt ends where the last message does),
// "add_special_tokens" (default false: templates write them) and the template's variables (ReadTemplateVariables, which
// may have `tools`; null: none).
//
// Roles: system, developer, user, assistant, tool, function. Content is a string, a list of {"type": "text", "text":
// ...} parts (joined by line breaks), or null where an assistant called tools. The arguments of an assistant's
// "tool_calls", which clients send as text, become objects, as templates expect them. Further keys of a message go to
// the template as they are.
//
// With `bounded_by` a prompt that the model's context certainly does not hold is an error, found before all of it is
// tokenized; null for a prompt of any length.
absl::StatusOr<Conversation> EncodeConversation(const Json& body, const Json& tools, const ServedModel* bounded_by,
                                                const TextCodec& codec);

}  // namespace winnow
