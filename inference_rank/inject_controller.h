#pragma once
#include <cstdint>

namespace winnow {

// Finds how many prefill tokens an iteration may compute beside decode rows so that the time between a stream's tokens
// stays below a target. Measured step times in, a number of tokens out; no clock.
//
// With d the time of a step alone and e(n) > 0 what n injected tokens add, the tokens are scaled by room / e(n), where
// room = aim - d. The fixed point, d + e(n) = aim, does not depend on how well d is known. For
// e(n) = a + c n scaling up does not overshoot (n room / e(n) <= (room - a) / c). Steps up go half of the way, on a
// logarithmic scale, so that they do not for a quadratic e either, and are at most a quarter; steps down are taken at
// once, but to no less than a quarter, so that one slow step does not stop prefill.
//
// The aim is at most nine tenths of the target. A step beyond the target lowers it by as much as a hundred others raise
// it, so that noise keeps one step in a hundred beyond.
//
// 0 tokens when fewer than kMinTokens fit: so few cost almost as much as kMinTokens. After kFirstPause steps alone
// kMinTokens are tried again, and where they do not fit either, after twice as many each time, up to kLongestPause.
// Whoever plans may inject in a pause all the same (Scheduler::Limits::prefill_patience).
class InjectController {
 public:
  static constexpr uint32_t kMinTokens = 8;
  static constexpr uint32_t kFirstPause = 16;
  static constexpr uint32_t kLongestPause = 1024;

  InjectController(double target_us, uint32_t max_tokens);

  // Of the next iteration.
  uint32_t tokens() const;
  // A step, or a whole iteration with `injected_tokens` beside its rows, took `step_us`.
  void Observe(uint32_t injected_tokens, double step_us);

 private:
  // Constant after construction.
  const double target_us_;
  const double max_tokens_;
  double tokens_;
  double aim_us_;
  bool missed_last_ = false;
  double alone_us_ = 0;  // moving average; 0: not known
  uint32_t steps_paused_ = 0;
  uint32_t pause_steps_ = kFirstPause;  // of the pause under way, or the next one
};

}  // namespace winnow
