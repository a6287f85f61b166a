#pragma once
#include <cstdint>
#include <vector>

#include "router/openai/json_document.h"
#include "router/openai/text_codec.h"

namespace winnow {

// The prompt of a conversation in token ids, from "messages", "chat_template_kwargs", "add_generation_prompt" (default
// true) and "add_special_tokens" (default false: templates write them).
//
// Roles: system, developer, user, assistant, tool, function. Content is a string, a list of {"type": "text", "text":
// ...} parts (joined by line breaks), or null where an assistant called tools. Further keys of a message go to the
// template as they are.
absl::StatusOr<std::vector<uint32_t>> EncodeConversation(const Json& body, const TextCodec& codec);

}  // namespace winnow
