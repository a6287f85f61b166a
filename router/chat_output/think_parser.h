#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "router/chat_output/content_writer.h"
#include "router/chat_output/message_parser.h"

namespace winnow {

// Splits off reasoning between <think> and </think> at the beginning of an answer; what follows goes to another parser.
class ThinkParser final : public MessageParser {
 public:
  // `open`: the prompt ends with <think>.
  ThinkParser(bool open, std::unique_ptr<MessageParser> answer)
      : state_(open ? State::kReasoning : State::kStart), answer_(std::move(answer)) {
    if (open) reasoning_.Break();
  }

  void Push(std::string_view text, MessageDelta* out) override;
  void Finish(MessageDelta* out) override;

 private:
  enum class State { kStart, kReasoning, kBeforeAnswer, kAnswer };

  // Looks at pending_; false when it needs more text to go on.
  bool Step(MessageDelta* out);

  State state_;
  const std::unique_ptr<MessageParser> answer_;
  ContentWriter reasoning_;
  std::string pending_;
};

}  // namespace winnow
