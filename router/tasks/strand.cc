#include "router/tasks/strand.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace winnow {

struct Strand::State {
  enum class Phase { kHeld, kIdle, kRunning };

  std::mutex mutex;
  std::condition_variable stopped;  // phase left kRunning
  Phase phase = Phase::kIdle;
  std::thread::id runner;  // while kRunning
  bool closed = false;
  std::deque<Task> queue;

  void Run(std::unique_lock<std::mutex>& lock) {
    phase = Phase::kRunning;
    runner = std::this_thread::get_id();
    while (!closed && !queue.empty()) {
      Task task = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
    phase = Phase::kIdle;
    stopped.notify_all();
  }
};

Strand::Strand(Start start) : state_(std::make_shared<State>()) {
  if (start == Start::kHeld) state_->phase = State::Phase::kHeld;
}

void Strand::Post(Task task) {
  const std::shared_ptr<State> state = state_;
  std::unique_lock lock(state->mutex);
  if (state->closed) return;
  state->queue.push_back(std::move(task));
  if (state->phase == State::Phase::kIdle) state->Run(lock);
}

bool Strand::Resume() {
  std::lock_guard lock(state_->mutex);
  if (!state_->queue.empty()) return true;
  if (state_->phase == State::Phase::kHeld) state_->phase = State::Phase::kIdle;
  return false;
}

void Strand::Drain() {
  const std::shared_ptr<State> state = state_;
  std::unique_lock lock(state->mutex);
  if (state->phase == State::Phase::kHeld) state->Run(lock);
}

void Strand::Close() {
  const std::shared_ptr<State> state = state_;
  std::deque<Task> dropped;  // destroyed without the lock
  std::unique_lock lock(state->mutex);
  state->closed = true;
  dropped.swap(state->queue);
  if (state->phase != State::Phase::kRunning || state->runner == std::this_thread::get_id()) {
    lock.unlock();
    return;
  }
  state->stopped.wait(lock, [&] { return state->phase != State::Phase::kRunning; });
  lock.unlock();
}

}  // namespace winnow
