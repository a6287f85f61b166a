#pragma once
#include "common/base/status.h"
#include "router/openai/json_document.h"

namespace winnow {

enum class Endpoint { kCompletions, kChatCompletions };

// Refuses fields of OpenAI's or vLLM's API that ask for something this server does not do: a field with the value that
// means "off" passes, any other is an error that names it. Fields that nobody knows are not looked at.
absl::Status RefuseUnsupportedFields(const Json& body, Endpoint endpoint);

}  // namespace winnow
