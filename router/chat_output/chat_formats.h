#pragma once
#include <functional>
#include <string_view>
#include <vector>

namespace winnow {

// How a model writes tool calls into its answer.
enum class ToolFormat {
  kNone,     // not at all, or in a way that is not known here
  kHermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen
  kLlama,    // {"name": ..., "parameters": {...}}, or the same behind <|python_tag|>: Llama 3.x
  kMistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name[ARGS]{...}
  kHarmony,  // <|channel|>commentary to=functions.name<|message|>{...}<|call|>: gpt-oss
};

// How it sets its reasoning apart.
enum class ReasoningFormat {
  kNone,
  kThink,    // <think>...</think> before the answer
  kHarmony,  // the channel "analysis"
};

struct ChatFormats {
  ToolFormat tools = ToolFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  bool operator==(const ChatFormats&) const = default;
};

// "hermes", "llama", "mistral", "harmony", "none".
std::string_view ToolFormatName(ToolFormat format);

// The formats that a chat template shows in what it writes of earlier turns, or, where it shows none, those whose
// markers are tokens of the vocabulary: nobody makes a token of a marker that a model does not write.
ChatFormats DetectChatFormats(std::string_view chat_template, const std::function<bool(std::string_view)>& is_token);

// Texts that mark what is what in an answer. Where they are special tokens, they must be decoded nevertheless.
std::vector<std::string_view> MarkersOf(ToolFormat format);
std::vector<std::string_view> MarkersOf(ReasoningFormat format);

}  // namespace winnow
