#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace winnow {

// So much in a minute: a bucket that holds a minute's worth and is refilled evenly. What is taken may exceed what is
// there; then nothing is left until the debt is paid.
class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // 0: no limit. What was taken before counts on.
  void SetPerMinute(double per_minute, Clock::time_point now) {
    Refill(now);
    const double taken = per_minute_ - level_;
    level_ = per_minute - taken;
    per_minute_ = per_minute;
  }

  // How long until `amount` is there; 0: it is.
  std::chrono::milliseconds WaitFor(double amount, Clock::time_point now) {
    if (per_minute_ == 0) return {};
    Refill(now);
    const double missing = amount - level_;
    if (missing <= 0) return {};
    return std::chrono::milliseconds(1 + static_cast<int64_t>(missing / per_minute_ * 60'000));
  }

  void Take(double amount, Clock::time_point now) {
    if (per_minute_ == 0) return;
    Refill(now);
    level_ -= amount;
  }

 private:
  void Refill(Clock::time_point now) {
    if (now <= refilled_) return;
    const double minutes = std::chrono::duration<double, std::ratio<60>>(now - refilled_).count();
    level_ = std::min(per_minute_, level_ + minutes * per_minute_);
    refilled_ = now;
  }

  double per_minute_ = 0;
  double level_ = 0;
  Clock::time_point refilled_{};
};

}  // namespace winnow
