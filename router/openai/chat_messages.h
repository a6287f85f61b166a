#pragma once
#include <cstdint>
#include <vector>

#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "router/openai/json_document.h"

namespace winnow {

// The prompt of a conversation in token ids, from "messages", "chat_template_kwargs", "add_generation_prompt" (default
// true) and "add_special_tokens" (default false: templates write them).
//
// Roles: system, developer, user, assistant, tool, function. Content is a string, a list of {"type": "text", "text":
// ...} parts (joined by line breaks), or null where an assistant called tools. Further keys of a message go to the
// template as they are.
//
// With `bounded_by` a prompt that the model's context certainly does not hold is an error, found before all of it is
// tokenized; null for a prompt of any length.
absl::StatusOr<std::vector<uint32_t>> EncodeConversation(const Json& body, const ServedModel* bounded_by,
                                                         const TextCodec& codec);

}  // namespace winnow
