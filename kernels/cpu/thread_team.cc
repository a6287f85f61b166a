#include "kernels/cpu/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "common/base/check.h"

namespace winnow {
namespace {

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A pause is 40 to 140 cycles: kSpins is a few microseconds, kYieldsPerThread some tens more for each thread of the
// team when nothing else wants the core. A larger team takes longer to wake, one thread after the other, and so may
// wait for longer: sixteen stay awake over the half millisecond between two layers of a step on a GPU.
constexpr int kSpins = 100;
constexpr int kYieldsPerThread = 50;

// Of larger teams one worker that comes late is a small part, and the kernel is busier moving all others.
constexpr int kMostKeptOff = 4;

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) {
  WINNOW_CHECK(num_threads >= 1 && num_threads < static_cast<int>(kInside));
  CPU_ZERO(&cores_);
  const bool keeps_off = num_threads > 1 && num_threads <= kMostKeptOff;
  if (keeps_off && (sched_getaffinity(0, sizeof cores_, &cores_) != 0 || CPU_COUNT(&cores_) != num_threads)) {
    CPU_ZERO(&cores_);
  }
  threads_.reserve(num_threads - 1);
  for (int worker = 1; worker < num_threads; ++worker)
    threads_.emplace_back([=, this] { WorkerMain(worker, kYieldsPerThread * num_threads); });
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true);
  control_.fetch_add(kInside + kOpen + 1);  // the next loop number
  control_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::KeepOffCallersCore() {
  const int core = sched_getcpu();
  if (core == caller_core_ || core < 0 || !CPU_ISSET(core, &cores_)) return;
  caller_core_ = core;
  cpu_set_t others = cores_;
  CPU_CLR(core, &others);
  // A worker that may not be moved stays where it is, which costs time only.
  for (std::thread& thread : threads_) pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
}

void ThreadTeam::RunGrains(int worker) {
  const int64_t count = count_;
  const int64_t grain = grain_;
  const Body body = body_;
  void* const context = context_;
  for (;;) {
    const int64_t begin = next_.fetch_add(grain, std::memory_order_relaxed);
    if (begin >= count) return;
    const int64_t end = std::min(begin + grain, count);
    for (int64_t i = begin; i < end; ++i) body(context, static_cast<int>(i), worker);
  }
}

void ThreadTeam::ParallelFor(int count, Body body, void* context, int grain) {
  if (threads_.empty() || count <= grain) {
    for (int i = 0; i < count; ++i) body(context, i, 0);
    return;
  }
  KeepOffCallersCore();
  body_ = body;
  context_ = context;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  const uint32_t loop = (control_.load(std::memory_order_relaxed) >> 16) + 1;
  control_.store(loop << 16 | kOpen);  // seq_cst: ordered before the look at sleepers_
  if (sleepers_.load() > 0) control_.notify_all();

  RunGrains(0);

  uint32_t control = control_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (int spins = 0; (control & kInside) != 0; ++spins) {
    if (spins < kSpins) {
      CpuRelax();
    } else {
      sched_yield();
    }
    control = control_.load(std::memory_order_acquire);
  }
}

void ThreadTeam::WorkerMain(int worker, int max_yields) {
  uint32_t seen_loop = 0;
  int idle = 0;
  for (;;) {
    uint32_t control = control_.load(std::memory_order_acquire);
    if ((control & kOpen) != 0 && control >> 16 != seen_loop) {
      if (control_.compare_exchange_weak(control, control + 1, std::memory_order_acq_rel)) {
        seen_loop = control >> 16;
        RunGrains(worker);
        control_.fetch_sub(1, std::memory_order_release);
        idle = 0;
      }
      continue;
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    ++idle;
    if (idle < kSpins) {
      CpuRelax();
    } else if (idle < kSpins + max_yields) {
      sched_yield();
    } else {
      sleepers_.fetch_add(1);
      // seq_cst on both sides: either this load sees the new loop or the opener sees the sleeper.
      if (control_.load() == control && !stop_.load()) control_.wait(control);
      sleepers_.fetch_sub(1);
      idle = 0;
    }
  }
}

}  // namespace winnow
