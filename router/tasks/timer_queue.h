#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace winnow {

// One thread that runs functions at given times. Thread-safe. Functions must be short and must not throw; they run
// without a lock, so they may add and cancel timers.
class TimerQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using TimerId = uint64_t;  // never 0

  TimerQueue();
  // Waits for the function that is running; the others never run.
  ~TimerQueue();
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  TimerId At(Clock::time_point time, std::function<void()> function);
  TimerId After(Clock::duration delay, std::function<void()> function) {
    return At(Clock::now() + delay, std::move(function));
  }
  // Does not wait for a function that has begun.
  void Cancel(TimerId id);

 private:
  using Key = std::pair<Clock::time_point, TimerId>;
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  TimerId next_id_ = 1;
  std::map<Key, std::function<void()>> timers_;
  std::unordered_map<TimerId, Clock::time_point> times_;
  std::thread thread_;  // last: it uses what is above
};

}  // namespace winnow
