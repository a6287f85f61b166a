#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "router/chat_output/chat_formats.h"
#include "router/chat_output/message_delta.h"

namespace winnow {

// Turns the text that a model writes into a message: content, reasoning and tool calls. The text comes in pieces of any
// size, each valid UTF-8, and however it is cut the pieces of the message add up to the same; text that could still
// turn out to be a marker is held back. What looks like a tool call and is none stays content: no text is lost but
// markers and the white space around them.
class MessageParser {
 public:
  virtual ~MessageParser() = default;
  // Appends to `out` what has become certain.
  virtual void Push(std::string_view text, MessageDelta* out) = 0;
  // The text is over. Once, last.
  virtual void Finish(MessageDelta* out) = 0;
};

// What to look for in an answer.
struct ChatParsing {
  ToolFormat tools = ToolFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  bool begins_in_reasoning = false;  // the prompt has opened it already
  bool include_reasoning = true;
  bool parallel_tool_calls = true;  // false: of several calls the first is kept
};

// `new_id` makes the ids of tool calls.
std::unique_ptr<MessageParser> MakeMessageParser(const ChatParsing& parsing, std::function<std::string()> new_id);

// A random id as clients of the format expect it: nine letters and digits for Mistral, whose templates refuse others;
// "call_" and 24 of them for all else.
std::string NewToolCallId(ToolFormat format);

}  // namespace winnow
