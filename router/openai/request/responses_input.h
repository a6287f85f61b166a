#pragma once
#include <string>
#include <vector>

#include "router/openai/json/json_document.h"

namespace winnow {

// The messages of a chat that say what the items of a Responses request say, and where each comes from.
struct ResponsesMessages {
  Json messages = Json::array();
  std::vector<std::string> origins;  // by message: "instructions", "input" or "input[3]", the first item of a message
};

// From "input", a string or a list of items, and "instructions", which become the first message.
//
// Items: messages (content a string or a list of input_text, output_text, text and refusal parts), function_call,
// function_call_output and reasoning. What an assistant did in a row, its reasoning, text and calls, is one message.
// Items of another type, and references to items, are errors that name the item.
absl::StatusOr<ResponsesMessages> ReadResponsesInput(const Json& body);

}  // namespace winnow
