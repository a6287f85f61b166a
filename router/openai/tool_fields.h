#pragma once
#include "common/base/status.h"
#include "router/openai/json_document.h"

namespace winnow {

// What a chat request says of tools.
struct ToolFields {
  Json tools;  // for the template, as the client wrote them; null: the model is to know of none
  bool parallel_tool_calls = true;
};

// "tools", "tool_choice" and "parallel_tool_calls". With the choice "none" the model is not shown the tools. A choice
// that forces a call is refused: it would need the answer to be constrained.
absl::StatusOr<ToolFields> ReadToolFields(const Json& body);

}  // namespace winnow
