#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "router/tasks/strand.h"
#include "router/tasks/timer_queue.h"

namespace winnow {

// A timer of an object that lives on a strand: its function runs there. A timer queue alone cannot take back what it
// has posted; this can: once Set or Cancel has been called, the function of an earlier Set does not run any more, even
// where its time had come and it was waiting on the strand. Set, Cancel and is_set are to be called on the strand.
class StrandTimer {
 public:
  // `timers` must be there whenever Set or Cancel is called. The owner cancels what it does not wait for any more.
  StrandTimer(TimerQueue* timers, const Strand& strand) : timers_(timers), strand_(strand) {}
  StrandTimer(const StrandTimer&) = delete;
  StrandTimer& operator=(const StrandTimer&) = delete;

  // Replaces what was set before. `function` may outlive the timer, but is not called then if the strand is closed.
  void Set(TimerQueue::Clock::time_point time, std::function<void()> function);
  void Cancel();
  // Its time has not come, or the function still waits on the strand.
  bool is_set() const { return wanted_ && *wanted_; }

 private:
  TimerQueue* const timers_;
  const Strand strand_;  // the owner's
  TimerQueue::TimerId id_ = 0;
  std::shared_ptr<bool> wanted_;  // of the newest Set: false once it was cancelled or its function has begun
};

}  // namespace winnow
