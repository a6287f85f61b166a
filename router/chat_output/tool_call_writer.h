#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "router/chat_output/message_delta.h"

namespace winnow {

// Numbers the tool calls of an answer and writes their pieces.
class ToolCallWriter {
 public:
  // `parallel` false: calls after the first are dropped.
  ToolCallWriter(std::function<std::string()> new_id, bool parallel)
      : new_id_(std::move(new_id)), parallel_(parallel) {}

  void Begin(std::string_view name, MessageDelta* out) {
    index_ = next_index_++;
    if (keeps()) out->Append(ToolCallDelta{.index = index_, .id = new_id_(), .name = std::string(name)});
  }
  // Of the call that was begun last.
  void AddArguments(std::string_view text, MessageDelta* out) {
    if (keeps() && !text.empty()) out->Append(ToolCallDelta{.index = index_, .arguments = std::string(text)});
  }

 private:
  bool keeps() const { return parallel_ || index_ == 0; }

  const std::function<std::string()> new_id_;
  const bool parallel_;
  uint32_t index_ = 0;
  uint32_t next_index_ = 0;
};

}  // namespace winnow
