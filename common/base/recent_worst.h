#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace winnow {

// The longest of the durations that were measured lately: it counts in full for kHold, and for half after each further
// kHold. Time is an argument. Not thread-safe.
class RecentWorst {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kHold{60};

  void Note(Clock::duration measured, Clock::time_point now) {
    if (measured < At(now)) return;
    worst_ = measured;
    when_ = now;
  }
  Clock::duration At(Clock::time_point now) const {
    const auto halvings = std::clamp<Clock::rep>((now - when_) / kHold, 0, 62);
    return worst_ / (int64_t{1} << halvings);
  }

 private:
  Clock::duration worst_{};
  Clock::time_point when_{};
};

}  // namespace winnow
