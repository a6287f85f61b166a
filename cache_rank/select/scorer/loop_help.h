#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace winnow {

// Help for the tasks of one parallel loop: a worker that finds no task any more takes part in short loops of those that
// are still at theirs. There are as many tasks as kv heads that are selected for, which may be fewer than threads, and
// a thread that wakes late leaves its task to another.
//
// The parallel loop has num_tasks indices, in which EndTask is called last, and behind them some in which Help is: they
// have to be handed out in ascending order, so that whoever helps waits for tasks that somebody works at.
class LoopHelp {
 public:
  // A worker's own loops, one at a time.
  class alignas(64) Loop {
   public:
    // Whether it is worth while to cut a loop into parts now: there are workers without a task, or they are about to
    // come.
    bool has_help() const { return help_->has_idle_workers(); }
    // Calls body(i) once for each i < count, in any order and on any thread; returns when all calls have.
    void Run(size_t count, absl::FunctionRef<void(size_t)> body);

   private:
    friend class LoopHelp;
    // Takes part; false when the loop is not under way, nothing of it is left, or more helpers than that are inside.
    bool Join(uint32_t most_inside);
    void RunParts();

    // Number of the loop (16 bits), open bit, helpers inside (15 bits). What describes the loop changes only while it
    // is closed and nobody is inside.
    static constexpr uint32_t kOpen = 1u << 15;
    static constexpr uint32_t kInside = kOpen - 1;
    std::atomic<uint32_t> control_{0};
    std::atomic<size_t> next_{0};
    std::atomic<size_t> count_{0};
    absl::FunctionRef<void(size_t)>* body_ = nullptr;
    LoopHelp* help_ = nullptr;
  };

  explicit LoopHelp(int num_workers);

  Loop& loop(int worker) { return loops_[worker]; }
  // Before the parallel loop.
  void Begin(int num_tasks) { tasks_left_.store(num_tasks, std::memory_order_relaxed); }
  void EndTask() { tasks_left_.fetch_sub(1, std::memory_order_acq_rel); }
  // Returns when all tasks have ended.
  void Help();

 private:
  bool JoinAny();
  bool has_idle_workers() const {
    const int left = tasks_left_.load(std::memory_order_relaxed);
    return left > 0 && left < num_workers_;
  }

  const int num_workers_;
  const std::unique_ptr<Loop[]> loops_;
  alignas(64) std::atomic<int> tasks_left_{0};
};

}  // namespace winnow
