#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/simulation/runtime/fiber.h"

namespace winnow::simulation {

using Nanos = int64_t;
inline constexpr Nanos kMicrosecond = 1000;
inline constexpr Nanos kMillisecond = 1000 * kMicrosecond;
inline constexpr Nanos kSecond = 1000 * kMillisecond;
inline constexpr Nanos kNever = INT64_MAX;

// One start of a simulated process. What is dead does nothing any more, and is left as it was, like a process that was
// killed; what is stopped does nothing until it goes on.
struct Process {
  std::string name;
  std::string address;  // "host:port" of its services
  bool dead = false;
  bool stopped = false;
  double slowness = 1;                        // of its threads, against those of an idle machine
  Nanos clock_offset = 0;                     // of its clock of the day; its steady clock is everybody's
  std::vector<std::function<void()>> parked;  // what came while it was stopped
};

// A thread of a simulated process.
struct Thread {
  uint64_t id = 0;
  Process* process = nullptr;
  std::unique_ptr<Fiber> fiber;
  uint64_t turn = 0;   // raised by every Block: a wake-up is for one of them
  bool woken = false;  // in the Block under way
  bool done = false;
  std::vector<Thread*> joiners;
};

// Virtual time, and the threads of all simulated processes, in one real thread. The order of what happens is a function
// of the seed alone. While it is there the process's clocks, threads, locks and random numbers are its own: see
// system_calls.cc. There is one at most, because those calls have no argument to find it by.
class Runtime {
 public:
  explicit Runtime(uint64_t seed);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  static Runtime* current() { return current_; }

  Nanos now() const { return now_; }
  // A reading of a clock takes time, so that whoever waits by looking gets there.
  Nanos ReadClock() { return now_ += 20; }
  Nanos UnixNow() { return ReadClock() + kUnixStart + (running_ == nullptr ? 0 : running_->process->clock_offset); }

  Process* NewProcess(std::string name, std::string address);
  // In the order of their making, dead ones included.
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }
  // Null where nobody lives.
  Process* FindByAddress(std::string_view address) const;

  // Runs `event` then, outside of any thread: it must not block.
  void At(Nanos time, std::function<void()> event);
  // The same as a part of a process: not when it is dead, later when it is stopped.
  void At(Nanos time, Process* process, std::function<void()> event);
  Thread* Spawn(Process* process, std::function<void()> body, Nanos delay = 0);

  // The thread that runs, or null in an event.
  Thread* running() const { return running_; }
  // Suspends the running thread until Wake or `deadline`. True when it was woken.
  bool Block(Nanos deadline = kNever);
  void Wake(Thread* thread);
  void Sleep(Nanos time) { Block(now_ + time); }

  void Kill(Process* process) { process->dead = true; }
  void Stop(Process* process) { process->stopped = true; }
  void Continue(Process* process);

  // Runs everything that is due until then, or until `done` says so, asked after each event.
  void RunUntil(Nanos time, const std::function<bool()>& done = nullptr);

  uint64_t Random() { return random_(); }
  uint64_t Random(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  bool Chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1.0p-53 < probability; }

  // Of all that has happened so far: runs of one seed agree.
  uint64_t digest() const { return digest_; }
  uint64_t num_events() const { return num_events_; }

  void set_tracing(bool tracing) { tracing_ = tracing; }
  bool tracing() const { return tracing_; }
  // One line: virtual time, process, what happened.
  void Trace(std::string_view process, std::string_view what) const;

  // For system_calls.cc.
  std::unordered_map<const void*, std::deque<Thread*>> waiters;
  Thread* FindThread(uint64_t id) const { return id <= threads_.size() && id > 0 ? threads_[id - 1].get() : nullptr; }

 private:
  static constexpr Nanos kUnixStart = 1'700'000'000 * kSecond;
  struct Event {
    Nanos time;
    uint64_t number;
    Process* process;
    std::function<void()> run;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };
  void Resume(Thread* thread, uint64_t turn);
  // Until a thread that could run does: the scheduler's share.
  Nanos Latency(const Process& process);

  static Runtime* current_;
  Nanos now_ = 1000 * kSecond;
  uint64_t next_event_ = 0;
  uint64_t num_events_ = 0;
  uint64_t digest_ = 1469598103934665603ull;
  bool tracing_ = false;
  std::mt19937_64 random_;
  std::vector<Event> events_;  // a heap
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* running_ = nullptr;
};

}  // namespace winnow::simulation
