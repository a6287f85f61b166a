#include "router/tasks/timer_queue.h"

namespace winnow {

TimerQueue::TimerQueue() : thread_([this] { Run(); }) {}

TimerQueue::~TimerQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

TimerQueue::TimerId TimerQueue::At(Clock::time_point time, std::function<void()> function) {
  std::lock_guard lock(mutex_);
  const TimerId id = next_id_++;
  const auto it = timers_.emplace(Key{time, id}, std::move(function)).first;
  times_.emplace(id, time);
  if (it == timers_.begin()) changed_.notify_all();
  return id;
}

void TimerQueue::Cancel(TimerId id) {
  std::function<void()> dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto it = times_.find(id);
  if (it == times_.end()) return;
  const auto timer = timers_.find(Key{it->second, id});
  dropped = std::move(timer->second);
  timers_.erase(timer);
  times_.erase(it);
}

void TimerQueue::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (timers_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto first = timers_.begin();
    if (const Clock::time_point due = first->first.first; Clock::now() < due) {
      changed_.wait_until(lock, due);
      continue;
    }
    std::function<void()> function = std::move(first->second);
    times_.erase(first->first.second);
    timers_.erase(first);
    lock.unlock();
    function();
    function = nullptr;
    lock.lock();
  }
}

}  // namespace winnow
