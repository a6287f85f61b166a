#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// How RPC threads reach the data-plane thread: they leave a command and wait for its answer. Nothing else is shared
// between them.
class ControlQueue {
 public:
  // `wake` ends the data-plane thread's wait; any thread.
  explicit ControlQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Leaves a command without waiting. False, and the command is dropped, after Close.
  bool Post(std::function<void()> command);

  // Runs `command` on the data-plane thread and returns what it returns (a Status or StatusOr). DEADLINE_EXCEEDED when
  // it has not started by then, in which case it never will; UNAVAILABLE after Close.
  template <typename Command>
  auto Call(std::chrono::system_clock::time_point deadline, Command command) -> decltype(command());

  // Data-plane thread: runs what has come.
  void RunAll();
  // Data-plane thread: refuses commands from now on and runs those that were accepted.
  void Close();

 private:
  enum class Stage { kWaiting, kStarted, kDone, kAbandoned };
  template <typename Result>
  struct Pending {
    std::mutex mutex;
    std::condition_variable changed;
    // Guarded by mutex.
    Stage stage = Stage::kWaiting;
    Result result = absl::UnavailableError("the cache rank is stopping");
  };

  const std::function<void()> wake_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::function<void()>> commands_;
  bool closed_ = false;
};

template <typename Command>
auto ControlQueue::Call(std::chrono::system_clock::time_point deadline, Command command) -> decltype(command()) {
  using Result = decltype(command());
  auto pending = std::make_shared<Pending<Result>>();
  const bool posted = Post([pending, command = std::move(command)]() mutable {
    {
      std::lock_guard lock(pending->mutex);
      if (pending->stage == Stage::kAbandoned) return;
      pending->stage = Stage::kStarted;
    }
    Result result = command();
    std::lock_guard lock(pending->mutex);
    pending->result = std::move(result);
    pending->stage = Stage::kDone;
    pending->changed.notify_all();
  });
  if (!posted) return Result(absl::UnavailableError("the cache rank is stopping"));
  std::unique_lock lock(pending->mutex);
  const bool started = pending->changed.wait_until(lock, deadline, [&] { return pending->stage == Stage::kDone; }) ||
                       pending->stage == Stage::kStarted;
  if (!started) {
    pending->stage = Stage::kAbandoned;
    return Result(absl::DeadlineExceededError("the data plane did not take the call in time"));
  }
  // Commands are short: one that has started is waited for, so that its effect and its answer agree.
  pending->changed.wait(lock, [&] { return pending->stage == Stage::kDone; });
  return std::move(pending->result);
}

}  // namespace winnow
