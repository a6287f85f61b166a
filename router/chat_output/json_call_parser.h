#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "router/chat_output/content_writer.h"
#include "router/chat_output/message_parser.h"
#include "router/chat_output/tool_call_json.h"
#include "router/chat_output/tool_call_writer.h"

namespace winnow {

// What stands around tool calls that are written as JSON.
struct JsonCallSyntax {
  std::string_view open;          // before the calls
  std::string_view close = {};    // after each, where the format has one
  std::string_view between = {};  // besides white space, characters that may stand before, between and after the calls
  bool bare = false;   // an answer that begins with an object is one, too; it needs arguments to count as a call
  bool named = false;  // the name may stand before the arguments: name[ARGS]{...}
};

JsonCallSyntax JsonCallSyntaxOf(ToolFormat format);  // Hermes, Llama or Mistral

// Parses content with tool calls in JSON.
class JsonCallParser final : public MessageParser {
 public:
  JsonCallParser(JsonCallSyntax syntax, ToolCallWriter calls) : syntax_(syntax), calls_(std::move(calls)) {}

  void Push(std::string_view text, MessageDelta* out) override;
  void Finish(MessageDelta* out) override;

 private:
  enum class State {
    kStart,       // nothing but white space so far
    kContent,     // up to the next opening marker
    kBeforeCall,  // a call, or the end of the calls
    kObject,      // inside {"name": ..., "arguments": ...}
    kName,        // inside the name that stands before arguments
    kArguments,   // inside such arguments
    kAfterCall,   // the closing marker
  };

  // Each looks at pending_ and returns false when it needs more text to go on.
  bool Step(MessageDelta* out);
  bool StepStart();
  bool StepContent(MessageDelta* out);
  bool StepBeforeCall(MessageDelta* out);
  bool StepObject(MessageDelta* out);
  bool StepName(MessageDelta* out);
  bool StepArguments(MessageDelta* out);
  bool StepAfterCall();

  // Moves bytes from pending_ to what is content should there be no call after all.
  void Take(size_t bytes);
  void BeginCall(std::string_view name, MessageDelta* out);
  void EndCall();
  void NoCall(MessageDelta* out);

  const JsonCallSyntax syntax_;
  ToolCallWriter calls_;
  ContentWriter content_;
  State state_ = State::kStart;
  std::string pending_;
  std::string candidate_;  // since the opening marker, while it is not certain that there is a call
  bool begun_ = false;     // the call under way has been told
  bool made_call_ = false;
  bool after_marker_ = false;  // an opening marker stands before what is read
  ToolCallJson object_;
  JsonValueScan arguments_;
};

}  // namespace winnow
