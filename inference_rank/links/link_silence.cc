#include "inference_rank/links/link_silence.h"

namespace winnow {

bool LinkSilence::Look(bool awaited, uint64_t num_heard, bool expired, Time now) {
  if (!awaited || num_heard != num_heard_ || !silent_since_) {
    num_heard_ = num_heard;
    was_unanswered_ = false;
    answered_again_.reset();
    silent_since_ = awaited ? std::optional(now) : std::nullopt;
    return false;
  }
  expired_ = expired;
  return now - *silent_since_ >= (expired ? kLook : kBeforeAsking);
}

bool LinkSilence::GivesUp(bool answered, Time now) {
  if (!answered) {
    was_unanswered_ = true;
    answered_again_.reset();
    return expired_ || now - *silent_since_ >= kPatience;
  }
  if (!was_unanswered_) return false;
  if (!answered_again_) answered_again_ = now;
  return now - *answered_again_ >= kAfterAnswer;
}

}  // namespace winnow
