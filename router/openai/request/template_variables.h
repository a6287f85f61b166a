#pragma once
#include "common/base/status.h"
#include "router/generation/text_codec.h"
#include "router/openai/json/json_document.h"

namespace winnow {

// The variables that a chat request hands to the template, besides its messages: "chat_template_kwargs" as they are,
// which win, "tools" (null: none), "documents", "enable_thinking" and "reasoning_effort".
//
// A template that has switches for reasoning of another kind gets "reasoning_effort" as `enable_thinking`, false for
// "none" and true for the other efforts. A field that the template does not read is an error: it would have no effect.
absl::StatusOr<Json> ReadTemplateVariables(const Json& body, const Json& tools, const TextCodec& codec);

}  // namespace winnow
