#include "inference_rank/links/link_silence.h"

#include <algorithm>

namespace winnow {

LinkSilence::Time::duration LinkSilence::PatienceAt(Time now) const {
  return std::clamp<Time::duration>(2 * silence_.At(now), kPatience, kLongestPatience);
}

void LinkSilence::BeginAnew() {
  const RecentWorst silence = silence_;
  *this = LinkSilence();
  silence_ = silence;
}

bool LinkSilence::Look(bool awaited, uint64_t num_heard, bool expired, Time now) {
  if (!awaited || num_heard != num_heard_ || !silent_since_) {
    if (silent_since_ && num_heard != num_heard_) silence_.Note(now - *silent_since_, now);
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
    const bool gives_up = expired_ || now - *silent_since_ >= PatienceAt(now);
    if (gives_up) silence_.Note(now - *silent_since_, now);
    return gives_up;
  }
  if (!was_unanswered_) return false;
  if (!answered_again_) answered_again_ = now;
  return now - *answered_again_ >= kAfterAnswer;
}

}  // namespace winnow
