#include "router/tasks/strand_timer.h"

#include <utility>

namespace winnow {

void StrandTimer::Set(TimerQueue::Clock::time_point time, std::function<void()> function) {
  Cancel();
  wanted_ = std::make_shared<bool>(true);
  id_ = timers_->At(time, [strand = strand_, wanted = wanted_, function = std::move(function)]() mutable {
    strand.Post([wanted, function = std::move(function)] {
      if (std::exchange(*wanted, false)) function();
    });
  });
}

void StrandTimer::Cancel() {
  if (wanted_) *wanted_ = false;
  if (id_ != 0) timers_->Cancel(std::exchange(id_, 0));
}

}  // namespace winnow
