#pragma once
#include <functional>
#include <memory>

namespace winnow {

// Runs tasks one at a time, in the order they were posted, without a thread of its own: whoever posts to an idle strand
// runs the tasks until none is left. No lock is held while a task runs, so a task may post, and may close the strand
// that runs it. Every object here that calls user code does so from its strand, which is what makes "one callback at a
// time" and "destroying returns once no callback is running" true.
class Strand {
 public:
  using Task = std::function<void()>;
  enum class Start { kIdle, kHeld };

  // A held strand only collects tasks until Resume.
  explicit Strand(Start start = Start::kIdle);

  // Dropped when the strand is closed. Must not be called with a lock held that a task might take.
  void Post(Task task);

  // Ends the hold. True: tasks have come in meanwhile, and the caller must arrange for Drain to be called, on a thread
  // where tasks may run.
  [[nodiscard]] bool Resume();
  void Drain();

  // Drops what is queued and all that comes later. Returns once no task is running, or at once from inside a task.
  void Close();

 private:
  struct State;
  std::shared_ptr<State> state_;  // outlives the strand while a task that destroys the strand's owner is running
};

}  // namespace winnow
