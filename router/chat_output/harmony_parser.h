#pragma once
#include <string>
#include <string_view>

#include "router/chat_output/message_parser.h"
#include "router/chat_output/tool_call_writer.h"

namespace winnow {

// Parses answers in the harmony format: messages with a header each, <|start|>assistant<|channel|>final<|message|>...
// The channel "analysis" is reasoning; a message to a function is a tool call; the others are content. The prompt has
// opened the first header already. Text without any header is content.
class HarmonyParser final : public MessageParser {
 public:
  explicit HarmonyParser(ToolCallWriter calls) : calls_(std::move(calls)) {}

  void Push(std::string_view text, MessageDelta* out) override;
  void Finish(MessageDelta* out) override;

 private:
  enum class State { kStart, kHeader, kBody };
  enum class Body { kContent, kReasoning, kArguments };

  // Looks at pending_; false when it needs more text to go on.
  bool Step(MessageDelta* out);
  void BeginBody(std::string_view header, MessageDelta* out);
  void AddBody(std::string_view text, MessageDelta* out);

  ToolCallWriter calls_;
  State state_ = State::kStart;
  Body body_ = Body::kContent;
  bool body_has_text_ = false;
  bool has_reasoning_ = false;
  bool has_content_ = false;
  std::string pending_;
};

}  // namespace winnow
