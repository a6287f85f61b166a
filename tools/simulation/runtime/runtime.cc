#include "tools/simulation/runtime/runtime.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/base/check.h"

namespace winnow::simulation {

Runtime* Runtime::current_ = nullptr;

Runtime::Runtime(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15ull + 1) {
  WINNOW_CHECK(current_ == nullptr);
  current_ = this;
}

Runtime::~Runtime() {
  current_ = nullptr;
}

Process* Runtime::NewProcess(std::string name, std::string address) {
  processes_.push_back(std::make_unique<Process>());
  processes_.back()->name = std::move(name);
  processes_.back()->address = std::move(address);
  return processes_.back().get();
}

Process* Runtime::FindByAddress(std::string_view address) const {
  for (auto process = processes_.rbegin(); process != processes_.rend(); ++process) {
    if ((*process)->address == address && !(*process)->dead) return process->get();
  }
  return nullptr;
}

void Runtime::At(Nanos time, std::function<void()> event) {
  At(time, nullptr, std::move(event));
}

void Runtime::At(Nanos time, Process* process, std::function<void()> event) {
  events_.push_back({std::max(time, now_), next_event_++, process, std::move(event)});
  std::push_heap(events_.begin(), events_.end(), Later());
}

Nanos Runtime::Latency(const Process& process) {
  Nanos latency = 1 * kMicrosecond + static_cast<Nanos>(Random(20 * kMicrosecond));
  if (process.slowness > 1 && Chance(0.1)) latency += static_cast<Nanos>(Random(10 * kMillisecond));
  return static_cast<Nanos>(static_cast<double>(latency) * process.slowness);
}

Thread* Runtime::Spawn(Process* process, std::function<void()> body, Nanos delay) {
  threads_.push_back(std::make_unique<Thread>());
  Thread* const thread = threads_.back().get();
  thread->id = threads_.size();
  thread->process = process;
  thread->fiber = std::make_unique<Fiber>([this, thread, body = std::move(body)] {
    body();
    thread->done = true;
    for (Thread* joiner : thread->joiners) Wake(joiner);
  });
  At(now_ + delay + Latency(*process), process, [this, thread] { Resume(thread, thread->turn); });
  return thread;
}

void Runtime::Resume(Thread* thread, uint64_t turn) {
  if (thread->done || thread->turn != turn) return;
  WINNOW_CHECK(running_ == nullptr);
  running_ = thread;
  thread->fiber->Resume();
  running_ = nullptr;
  if (thread->fiber->done()) thread->fiber.reset();
}

bool Runtime::Block(Nanos deadline) {
  Thread* const thread = running_;
  WINNOW_CHECK(thread != nullptr);  // an event blocks
  const uint64_t turn = ++thread->turn;
  thread->woken = false;
  if (deadline != kNever) {
    At(deadline + Latency(*thread->process), thread->process, [this, thread, turn] { Resume(thread, turn); });
  }
  thread->fiber->Suspend();
  ++thread->turn;  // the other reason to go on comes too late
  return thread->woken;
}

void Runtime::Wake(Thread* thread) {
  if (thread->done || thread->woken) return;
  thread->woken = true;
  const uint64_t turn = thread->turn;
  At(now_ + Latency(*thread->process), thread->process, [this, thread, turn] { Resume(thread, turn); });
}

void Runtime::Continue(Process* process) {
  if (!process->stopped) return;
  process->stopped = false;
  for (auto& event : std::exchange(process->parked, {})) At(now_, process, std::move(event));
}

void Runtime::RunUntil(Nanos time, const std::function<bool()>& done) {
  while (!events_.empty() && events_.front().time <= time) {
    std::pop_heap(events_.begin(), events_.end(), Later());
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = std::max(now_, event.time);
    if (event.process != nullptr) {
      if (event.process->dead) continue;
      if (event.process->stopped) {
        event.process->parked.push_back(std::move(event.run));
        continue;
      }
    }
    ++num_events_;
    digest_ = (digest_ ^ static_cast<uint64_t>(now_) ^ (event.number << 40)) * 1099511628211ull;
    event.run();
    if (done && done()) return;
  }
  now_ = std::max(now_, time);
}

void Runtime::Trace(std::string_view process, std::string_view what) const {
  if (!tracing_) return;
  std::fprintf(stderr, "%12.6f  %-8.*s  %.*s\n", static_cast<double>(now_ - 1000 * kSecond) / kSecond,
               static_cast<int>(process.size()), process.data(), static_cast<int>(what.size()), what.data());
}

}  // namespace winnow::simulation
