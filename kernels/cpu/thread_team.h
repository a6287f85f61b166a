#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace winnow {

// A fixed team of threads for short parallel loops (microseconds). The caller of ParallelFor is worker 0.
//
// Indices are claimed one grain at a time, in ascending order, and a worker takes part in a loop only if it arrives
// while the loop is open. So the caller never waits for a thread that the operating system has not scheduled, only for
// one that is in the middle of a grain. Idle workers spin for some microseconds, then yield, then sleep. Those of a
// small team that has a thread for each core are kept off the core of the caller (KeepOffCallersCore).
//
// ParallelFor is called by one thread at a time and does not nest. Nothing here allocates after construction.
class ThreadTeam {
 public:
  using Body = void (*)(void* context, int index, int worker);

  // `num_threads` includes the caller; >= 1.
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(context, index, worker) once for each index in [0, count), in no fixed order; returns when all calls
  // have.
  void ParallelFor(int count, Body body, void* context, int grain = 1);

  // The same for a callable (int index, int worker).
  template <typename F>
  void ParallelFor(int count, const F& body, int grain = 1) {
    ParallelFor(
        count, [](void* context, int index, int worker) { (*static_cast<const F*>(context))(index, worker); },
        const_cast<F*>(&body), grain);
  }

 private:
  void WorkerMain(int worker, int max_yields);
  // Claims and runs grains until none is left.
  void RunGrains(int worker);
  // Two processes that take turns, each with as many threads as there are cores, look busy to the kernel on all cores
  // while one of them waits, yielding. It then wakes a worker on the core of who wakes it, where the worker waits for
  // the loop to end that it was woken for.
  void KeepOffCallersCore();

  // control_: loop number (16 bits), open bit, workers inside (15 bits). Job fields are written only while the loop is
  // closed and nobody is inside, and read only inside.
  static constexpr uint32_t kOpen = 1u << 15;
  static constexpr uint32_t kInside = kOpen - 1;

  alignas(64) std::atomic<uint32_t> control_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  Body body_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;

  alignas(64) std::atomic<int64_t> next_{0};

  alignas(64) std::vector<std::thread> threads_;
  // The cores that the team was made on; none where workers run wherever the kernel lets them.
  cpu_set_t cores_;
  int caller_core_ = -1;  // that workers are kept off
};

}  // namespace winnow
