#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace winnow {

// A piece of a tool call. `id` and `name` come with its first piece alone; the pieces of `arguments` concatenate to the
// text that the model wrote.
struct ToolCallDelta {
  uint32_t index = 0;
  std::string id = {};
  std::string name = {};
  std::string arguments = {};
};

// A piece of an assistant's message; a whole message is all its pieces appended.
struct MessageDelta {
  std::string reasoning = {};
  std::string content = {};
  std::vector<ToolCallDelta> tool_calls = {};

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }

  void Append(MessageDelta delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (ToolCallDelta& call : delta.tool_calls) Append(std::move(call));
  }

  // Pieces of a call follow one another, so the call that a piece goes on with is the last one.
  void Append(ToolCallDelta call) {
    if (tool_calls.empty() || tool_calls.back().index != call.index) {
      tool_calls.push_back(std::move(call));
    } else {
      tool_calls.back().arguments += call.arguments;
    }
  }
};

}  // namespace winnow
