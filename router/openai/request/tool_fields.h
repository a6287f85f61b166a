#pragma once
#include <vector>

#include "common/base/status.h"
#include "router/constraint/answer_grammar.h"
#include "router/openai/json/json_document.h"

namespace winnow {

// What a chat request says of tools.
struct ToolFields {
  Json tools;  // for the template, as the client wrote them; null: the model is to know of none
  bool parallel_tool_calls = true;
  // The answer must call one of these; empty: it may call any or none.
  std::vector<CallableFunction> forced;
};

// "tools", "tool_choice" and "parallel_tool_calls". With the choice "none" the model is not shown the tools, with
// "required" or a named function the answer must call one, or that one.
absl::StatusOr<ToolFields> ReadToolFields(const Json& body);

}  // namespace winnow
