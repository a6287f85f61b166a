#include "router/chat_output/chat_formats.h"

namespace winnow {
namespace {

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

ToolFormat ToolFormatOf(const std::function<bool(std::string_view)>& has) {
  if (has("<|channel|>")) return ToolFormat::kHarmony;
  if (has("[TOOL_CALLS]")) return ToolFormat::kMistral;
  // <function=name> inside <tool_call> is a format of its own.
  if (has("<tool_call>")) return has("<function=") ? ToolFormat::kNone : ToolFormat::kHermes;
  if (has("<|python_tag|>")) return ToolFormat::kLlama;
  return ToolFormat::kNone;
}

}  // namespace

std::string_view ToolFormatName(ToolFormat format) {
  switch (format) {
    case ToolFormat::kNone:
      return "none";
    case ToolFormat::kHermes:
      return "hermes";
    case ToolFormat::kLlama:
      return "llama";
    case ToolFormat::kMistral:
      return "mistral";
    case ToolFormat::kHarmony:
      return "harmony";
  }
  return "?";
}

ChatFormats DetectChatFormats(std::string_view chat_template, const std::function<bool(std::string_view)>& is_token) {
  const auto in_template = [&](std::string_view marker) { return Contains(chat_template, marker); };
  ChatFormats formats;
  formats.tools = ToolFormatOf(in_template);
  // Llama 3.x answers tools in the role "ipython", also where its template has no built-in tools.
  if (formats.tools == ToolFormat::kNone && in_template("ipython")) formats.tools = ToolFormat::kLlama;
  if (formats.tools == ToolFormat::kNone && !in_template("<function=")) formats.tools = ToolFormatOf(is_token);
  if (in_template("<|channel|>") || is_token("<|channel|>")) {
    formats.reasoning = ReasoningFormat::kHarmony;
  } else if (in_template("</think>") || is_token("</think>")) {
    formats.reasoning = ReasoningFormat::kThink;
  }
  return formats;
}

std::vector<std::string_view> MarkersOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kNone:
      return {};
    case ToolFormat::kHermes:
      return {"<tool_call>", "</tool_call>"};
    case ToolFormat::kLlama:
      return {"<|python_tag|>"};
    case ToolFormat::kMistral:
      return {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
    case ToolFormat::kHarmony:
      return MarkersOf(ReasoningFormat::kHarmony);
  }
  return {};
}

std::vector<std::string_view> MarkersOf(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kNone:
      return {};
    case ReasoningFormat::kThink:
      return {"<think>", "</think>"};
    case ReasoningFormat::kHarmony:
      return {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"};
  }
  return {};
}

}  // namespace winnow
