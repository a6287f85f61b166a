#include "router/chat_output/message_parser.h"

#include <random>

#include "router/chat_output/harmony_parser.h"
#include "router/chat_output/json_call_parser.h"
#include "router/chat_output/think_parser.h"

namespace winnow {
namespace {

class ContentParser final : public MessageParser {
 public:
  void Push(std::string_view text, MessageDelta* out) override { out->content += text; }
  void Finish(MessageDelta*) override {}
};

class WithoutReasoning final : public MessageParser {
 public:
  explicit WithoutReasoning(std::unique_ptr<MessageParser> parser) : parser_(std::move(parser)) {}

  void Push(std::string_view text, MessageDelta* out) override {
    parser_->Push(text, out);
    out->reasoning.clear();
  }
  void Finish(MessageDelta* out) override {
    parser_->Finish(out);
    out->reasoning.clear();
  }

 private:
  const std::unique_ptr<MessageParser> parser_;
};

std::unique_ptr<MessageParser> MakeParser(const ChatParsing& parsing, std::function<std::string()> new_id) {
  ToolCallWriter calls(std::move(new_id), parsing.parallel_tool_calls);
  // Harmony's channels are never content, asked for or not.
  if (parsing.tools == ToolFormat::kHarmony || parsing.reasoning == ReasoningFormat::kHarmony) {
    return std::make_unique<HarmonyParser>(std::move(calls));
  }
  std::unique_ptr<MessageParser> parser = std::make_unique<ContentParser>();
  if (parsing.tools != ToolFormat::kNone) {
    parser = std::make_unique<JsonCallParser>(JsonCallSyntaxOf(parsing.tools), std::move(calls));
  }
  if (parsing.reasoning == ReasoningFormat::kThink) {
    parser = std::make_unique<ThinkParser>(parsing.begins_in_reasoning, std::move(parser));
  }
  return parser;
}

}  // namespace

std::unique_ptr<MessageParser> MakeMessageParser(const ChatParsing& parsing, std::function<std::string()> new_id) {
  std::unique_ptr<MessageParser> parser = MakeParser(parsing, std::move(new_id));
  return parsing.include_reasoning ? std::move(parser) : std::make_unique<WithoutReasoning>(std::move(parser));
}

std::string NewToolCallId(ToolFormat format) {
  static constexpr std::string_view kAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random([] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }());
  const bool short_id = format == ToolFormat::kMistral;
  std::string id = short_id ? "" : "call_";
  std::uniform_int_distribution<size_t> letter(0, kAlphabet.size() - 1);
  for (int i = 0; i < (short_id ? 9 : 24); ++i) id += kAlphabet[letter(random)];
  return id;
}

}  // namespace winnow
