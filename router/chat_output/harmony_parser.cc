#include "router/chat_output/harmony_parser.h"

#include <array>

#include "router/chat_output/markers.h"

namespace winnow {
namespace {

constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kFunctions = "functions.";
// What begins a header that the prompt has opened: a channel, or a recipient before it.
constexpr std::array<std::string_view, 3> kHeaderBegins = {"<|channel|>", "<|start|>", " to="};
// What ends a body. The ends of a turn are end tokens as well and usually have no text; a missing end is made up for.
constexpr std::array<std::string_view, 5> kBodyEnds = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};

// The word behind `key`, up to white space or the next marker.
std::string_view WordAfter(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == header.npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

}  // namespace

void HarmonyParser::Push(std::string_view text, MessageDelta* out) {
  pending_ += text;
  while (!pending_.empty() && Step(out)) {
  }
}

bool HarmonyParser::Step(MessageDelta* out) {
  if (state_ == State::kStart) {
    bool may_be_header = false;
    for (const std::string_view begin : kHeaderBegins) {
      if (pending_.starts_with(begin)) {
        state_ = State::kHeader;
        return true;
      }
      may_be_header = may_be_header || MayBegin(pending_, begin);
    }
    if (may_be_header) return false;
    state_ = State::kBody;
    return true;
  }
  if (state_ == State::kHeader) {
    const size_t end = pending_.find(kMessage);
    if (end == pending_.npos) return false;
    const std::string header = pending_.substr(0, end);
    pending_.erase(0, end + kMessage.size());
    BeginBody(header, out);
    return true;
  }
  const auto found = FindMarker(pending_, kBodyEnds);
  const size_t certain = found ? found->at : pending_.size() - HeldBytes(pending_, kBodyEnds);
  AddBody(std::string_view(pending_).substr(0, certain), out);
  pending_.erase(0, certain);
  if (!found) return false;
  const bool begins_header = found->marker == "<|start|>" || found->marker == "<|channel|>";
  if (!begins_header) pending_.erase(0, found->marker.size());
  state_ = State::kHeader;
  return true;
}

void HarmonyParser::BeginBody(std::string_view header, MessageDelta* out) {
  state_ = State::kBody;
  body_has_text_ = false;
  const std::string_view recipient = WordAfter(header, "to=");
  if (recipient.starts_with(kFunctions)) {
    body_ = Body::kArguments;
    calls_.Begin(recipient.substr(kFunctions.size()), out);
  } else {
    // What goes to a tool that is no function was not meant for the user either.
    const bool is_reasoning = WordAfter(header, "<|channel|>") == "analysis" || !recipient.empty();
    body_ = is_reasoning ? Body::kReasoning : Body::kContent;
  }
}

void HarmonyParser::AddBody(std::string_view text, MessageDelta* out) {
  if (text.empty()) return;
  if (body_ == Body::kArguments) return calls_.AddArguments(text, out);
  std::string& target = body_ == Body::kReasoning ? out->reasoning : out->content;
  bool& has_text = body_ == Body::kReasoning ? has_reasoning_ : has_content_;
  // Several messages of a kind become paragraphs of one text.
  if (!body_has_text_ && has_text) target += "\n\n";
  body_has_text_ = true;
  has_text = true;
  target += text;
}

void HarmonyParser::Finish(MessageDelta* out) {
  if (state_ != State::kHeader) AddBody(pending_, out);
}

}  // namespace winnow
