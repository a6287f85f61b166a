#include "router/chat_output/think_parser.h"

#include <array>

namespace winnow {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::array<std::string_view, 1> kClose = {"</think>"};

}  // namespace

void ThinkParser::Push(std::string_view text, MessageDelta* out) {
  if (state_ == State::kAnswer) return answer_->Push(text, out);
  pending_ += text;
  while (!pending_.empty() && Step(out)) {
  }
}

bool ThinkParser::Step(MessageDelta* out) {
  const size_t begin = pending_.find_first_not_of(kJsonSpace);
  switch (state_) {
    case State::kStart: {
      if (begin == pending_.npos) return false;
      const std::string_view text = std::string_view(pending_).substr(begin);
      if (text.starts_with(kOpen)) {
        pending_.erase(0, begin + kOpen.size());
        reasoning_.Break();
        state_ = State::kReasoning;
        return true;
      }
      if (MayBegin(text, kOpen)) return false;
      state_ = State::kAnswer;
      break;
    }
    case State::kReasoning: {
      const auto found = FindMarker(pending_, kClose);
      const size_t certain = found ? found->at : pending_.size() - HeldBytes(pending_, kClose);
      reasoning_.Add(std::string_view(pending_).substr(0, certain), &out->reasoning);
      pending_.erase(0, certain);
      if (!found) return false;
      pending_.erase(0, found->marker.size());
      state_ = State::kBeforeAnswer;
      return true;
    }
    case State::kBeforeAnswer:
      pending_.erase(0, begin);
      if (pending_.empty()) return false;
      state_ = State::kAnswer;
      break;
    case State::kAnswer:
      break;
  }
  answer_->Push(std::exchange(pending_, {}), out);
  return false;
}

void ThinkParser::Finish(MessageDelta* out) {
  if (state_ == State::kReasoning) reasoning_.Add(pending_, &out->reasoning);
  if (state_ == State::kStart) answer_->Push(pending_, out);
  answer_->Finish(out);
}

}  // namespace winnow
