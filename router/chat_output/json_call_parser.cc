#include "router/chat_output/json_call_parser.h"

#include <array>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr size_t kMaxHeadBytes = 256;  // of a name and what stands between it and its arguments
constexpr std::array<std::string_view, 2> kBeforeArguments = {"[CALL_ID]", "[ARGS]"};

bool MayBeginName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

JsonCallSyntax JsonCallSyntaxOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return {.open = "<tool_call>", .close = "</tool_call>"};
    case ToolFormat::kLlama:
      return {.open = "<|python_tag|>", .between = ";", .bare = true};
    case ToolFormat::kMistral:
      return {.open = "[TOOL_CALLS]", .between = "[,]", .named = true};
    default:
      WINNOW_CHECK(false);
  }
  return {};
}

void JsonCallParser::Push(std::string_view text, MessageDelta* out) {
  pending_ += text;
  while (!pending_.empty() && Step(out)) {
  }
}

bool JsonCallParser::Step(MessageDelta* out) {
  switch (state_) {
    case State::kStart:
      return StepStart();
    case State::kContent:
      return StepContent(out);
    case State::kBeforeCall:
      return StepBeforeCall(out);
    case State::kObject:
      return StepObject(out);
    case State::kName:
      return StepName(out);
    case State::kArguments:
      return StepArguments(out);
    case State::kAfterCall:
      return StepAfterCall();
  }
  return false;
}

bool JsonCallParser::StepStart() {
  const size_t begin = pending_.find_first_not_of(kJsonSpace);
  if (begin == pending_.npos) return false;
  const bool is_object = syntax_.bare && pending_[begin] == '{';
  state_ = is_object ? State::kBeforeCall : State::kContent;
  return true;
}

bool JsonCallParser::StepContent(MessageDelta* out) {
  const std::string_view markers[] = {syntax_.open};
  const auto found = FindMarker(pending_, markers);
  const size_t certain = found ? found->at : pending_.size() - HeldBytes(pending_, markers);
  content_.Add(std::string_view(pending_).substr(0, certain), &out->content);
  pending_.erase(0, certain);
  if (!found) return false;
  Take(syntax_.open.size());
  after_marker_ = true;
  state_ = State::kBeforeCall;
  return true;
}

bool JsonCallParser::StepBeforeCall(MessageDelta* out) {
  while (!pending_.empty()) {
    const char c = pending_.front();
    if (c == '{') {
      object_ = {};
      state_ = State::kObject;
      return true;
    }
    // First, as it may begin with a character that stands between calls.
    if (MayBegin(pending_, syntax_.open)) {
      if (pending_.size() < syntax_.open.size()) return false;
      Take(syntax_.open.size());
      after_marker_ = true;
    } else if (kJsonSpace.find(c) != kJsonSpace.npos || syntax_.between.find(c) != syntax_.between.npos) {
      // Behind a call it closes or separates; before the first one it may be content.
      made_call_ ? static_cast<void>(pending_.erase(0, 1)) : Take(1);
    } else if (syntax_.named && after_marker_ && MayBeginName(c)) {
      state_ = State::kName;
      return true;
    } else {
      NoCall(out);
      return true;
    }
  }
  return false;
}

bool JsonCallParser::StepObject(MessageDelta* out) {
  const size_t taken = object_.Push(pending_);
  Take(taken);
  const bool done = object_.state() == ToolCallJson::State::kDone;
  const bool complete = done && (object_.is_call() || !syntax_.bare || after_marker_);
  if (!begun_ && (object_.is_call() || complete)) BeginCall(object_.name(), out);
  if (begun_) calls_.AddArguments(object_.TakeArguments(), out);
  if (object_.state() == ToolCallJson::State::kReading) return false;
  if (!begun_) {
    NoCall(out);
    return true;
  }
  if (done && !object_.is_call()) calls_.AddArguments("{}", out);
  EndCall();
  return true;
}

bool JsonCallParser::StepName(MessageDelta* out) {
  const size_t open = pending_.find('{');
  const std::string_view head = std::string_view(pending_).substr(0, open);
  const auto end = FindMarker(head, kBeforeArguments);
  std::string name(head.substr(0, end ? end->at : head.size()));
  name.erase(name.find_last_not_of(' ') + 1);
  if (head.size() > kMaxHeadBytes || head.find('\n') != head.npos || name.find_first_of(" \"") != name.npos) {
    NoCall(out);
    return true;
  }
  if (open == pending_.npos) return false;
  Take(open);
  BeginCall(name, out);
  arguments_ = {};
  state_ = State::kArguments;
  return true;
}

bool JsonCallParser::StepArguments(MessageDelta* out) {
  const size_t taken = arguments_.Push(pending_);
  calls_.AddArguments(std::string_view(pending_).substr(0, taken), out);
  Take(taken);
  if (!arguments_.done()) return false;
  EndCall();
  return true;
}

bool JsonCallParser::StepAfterCall() {
  const size_t begin = pending_.find_first_not_of(kJsonSpace);
  pending_.erase(0, begin);
  if (pending_.empty()) return false;
  if (!syntax_.close.empty() && MayBegin(pending_, syntax_.close)) {
    if (pending_.size() < syntax_.close.size()) return false;
    pending_.erase(0, syntax_.close.size());
    state_ = State::kContent;
    return true;
  }
  state_ = State::kBeforeCall;
  return true;
}

void JsonCallParser::Take(size_t bytes) {
  if (!begun_) candidate_.append(pending_, 0, bytes);
  pending_.erase(0, bytes);
}

void JsonCallParser::BeginCall(std::string_view name, MessageDelta* out) {
  begun_ = true;
  made_call_ = true;
  candidate_.clear();
  content_.Break();
  calls_.Begin(name, out);
}

void JsonCallParser::EndCall() {
  begun_ = false;
  after_marker_ = false;
  state_ = State::kAfterCall;
}

void JsonCallParser::NoCall(MessageDelta* out) {
  content_.Add(std::exchange(candidate_, {}), &out->content);
  after_marker_ = false;
  state_ = State::kContent;
}

void JsonCallParser::Finish(MessageDelta* out) {
  if (!begun_) {
    content_.Add(candidate_, &out->content);
    content_.Add(pending_, &out->content);
  }
  content_.Finish(&out->content);
}

}  // namespace winnow
