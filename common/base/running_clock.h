#pragma once
#include <algorithm>
#include <chrono>

namespace winnow {

// Time that passes only while this process is seen to run. A reading adds what has passed since the one before, but no
// more than `max_step`: whoever was stopped or starved for longer could not hear others in that time, and must not hold
// it against them. To be read more often than every `max_step`. Not thread-safe.
class RunningClock {
 public:
  using Clock = std::chrono::steady_clock;

  RunningClock(Clock::duration max_step, Clock::time_point now)
      : max_step_(max_step), last_reading_(now), running_(now) {}

  // `now` is the steady clock's. The result is comparable with others of this object alone.
  Clock::time_point Advance(Clock::time_point now) {
    if (now <= last_reading_) return running_;
    running_ += std::min(now - last_reading_, max_step_);
    last_reading_ = now;
    return running_;
  }
  // As of the latest reading.
  Clock::time_point last() const { return running_; }

 private:
  const Clock::duration max_step_;
  Clock::time_point last_reading_;
  Clock::time_point running_;
};

}  // namespace winnow
