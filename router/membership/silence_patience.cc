#include "router/membership/silence_patience.h"

#include <algorithm>

namespace winnow {
namespace {

// Of what the rank itself has shown, and of what most others have: where these are late, everybody is, and its own
// worst is still to come.
constexpr int kOfOwn = 2, kOfOthers = 3;

}  // namespace

SilenceEvidence::Duration PatienceWith(SilenceEvidence evidence, SilenceEvidence::Duration least,
                                       SilenceEvidence::Duration most) {
  if (evidence.has_nowhere_to_go) return most;
  SilenceEvidence::Duration typical{};
  if (std::vector<SilenceEvidence::Duration>& others = evidence.others; !others.empty()) {
    // The lower one of two in the middle: one slow rank of two says nothing about a third.
    const auto middle = others.begin() + static_cast<ptrdiff_t>((others.size() - 1) / 2);
    std::nth_element(others.begin(), middle, others.end());
    typical = *middle;
  }
  const SilenceEvidence::Duration measured = std::max({kOfOwn * evidence.own, kOfOthers * typical, evidence.move});
  return std::clamp(measured, least, most);
}

void MoveCost::Note(Clock::duration measured, Clock::time_point now) {
  const Clock::duration before = At(now);
  mean_ = before == Clock::duration::zero() ? measured : before + (measured - before) / 4;
  last_ = now;
}

MoveCost::Clock::duration MoveCost::At(Clock::time_point now) const {
  return last_ && now - *last_ < kForgotten ? mean_ : Clock::duration::zero();
}

}  // namespace winnow
