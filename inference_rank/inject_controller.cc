#include "inference_rank/inject_controller.h"

#include <algorithm>
#include <cmath>

namespace winnow {
namespace {

constexpr double kMostAim = 0.9;  // of the target
constexpr double kLeastAim = 0.4;
// The aim is where as much is lost to steps beyond the target as is won by the others: at 1 step in 100.
constexpr double kAimLoss = 0.95;
constexpr double kAimGain = 1.0005;
constexpr double kAverageWeight = 0.2;  // of a new step in the average of steps alone
constexpr double kMostGrowth = 1.25;    // per observation
constexpr double kLeastShrink = 0.25;
constexpr double kFirstTokens = 32;

}  // namespace

InjectController::InjectController(double target_us, uint32_t max_tokens)
    : target_us_(target_us),
      max_tokens_(max_tokens),
      tokens_(std::min<double>(kFirstTokens, max_tokens)),
      aim_us_(kMostAim * target_us) {}

uint32_t InjectController::tokens() const {
  return tokens_ < std::min<double>(kMinTokens, max_tokens_) ? 0 : static_cast<uint32_t>(tokens_);
}

void InjectController::Observe(uint32_t injected_tokens, double step_us) {
  if (injected_tokens == 0) {
    alone_us_ = alone_us_ == 0 ? step_us : alone_us_ + kAverageWeight * (step_us - alone_us_);
    if (tokens() > 0 || ++steps_paused_ < pause_steps_) return;
    tokens_ = std::min<double>(kMinTokens, max_tokens_);
    steps_paused_ = 0;
    pause_steps_ = std::min(2 * pause_steps_, kLongestPause);
    return;
  }
  // Several slow steps in a row are a change, which the tokens follow, not noise.
  const bool missed = step_us > target_us_;
  if (!missed || !missed_last_) {
    aim_us_ = std::clamp(aim_us_ * (missed ? kAimLoss : kAimGain), kLeastAim * target_us_, kMostAim * target_us_);
  }
  missed_last_ = missed;
  // A step alone takes no longer than one with tokens: what was measured before the batch shrank is out of date.
  const double alone_us = std::min(alone_us_, step_us);
  const double added_us = std::max(step_us - alone_us, 1.0);
  const double fitting = injected_tokens * std::max(0.0, aim_us_ - alone_us) / added_us;
  if (step_us > aim_us_) {
    // After a pause the smallest step tells whether it can end: `fitting` is of a whole chunk and says little.
    tokens_ = tokens() == 0 ? std::min<double>(fitting, kMinTokens)
                            : std::min(tokens_, std::max(fitting, kLeastShrink * injected_tokens));
  } else {
    // From nothing it goes on with what was seen to fit.
    const double from = std::max<double>(tokens_, std::min<double>(injected_tokens, fitting));
    tokens_ = std::max(tokens_, std::min(std::sqrt(from * fitting), kMostGrowth * from));
  }
  if (step_us <= aim_us_) pause_steps_ = kFirstPause;
  tokens_ = std::clamp(tokens_, 0.0, max_tokens_);
}

}  // namespace winnow
