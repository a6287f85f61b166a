#include "cache_rank/select/scorer/loop_help.h"

#include <sched.h>

namespace winnow {
namespace {

// Looks at all loops before a helper lets others have its core: some microseconds.
constexpr int kLooks = 100;

}  // namespace

LoopHelp::LoopHelp(int num_workers) : num_workers_(num_workers), loops_(new Loop[num_workers]) {
  for (int worker = 0; worker < num_workers; ++worker) loops_[worker].help_ = this;
}

void LoopHelp::Loop::RunParts() {
  const size_t count = count_.load(std::memory_order_relaxed);
  for (size_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    (*body_)(i);
  }
}

void LoopHelp::Loop::Run(size_t count, absl::FunctionRef<void(size_t)> body) {
  body_ = &body;
  count_.store(count, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  const uint32_t number = (control_.load(std::memory_order_relaxed) >> 16) + 1;
  control_.store(number << 16 | kOpen, std::memory_order_release);
  RunParts();
  uint32_t control = control_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (int looks = 1; (control & kInside) != 0; ++looks) {
    if (looks % kLooks == 0) sched_yield();
    control = control_.load(std::memory_order_acquire);
  }
}

bool LoopHelp::Loop::Join(uint32_t most_inside) {
  uint32_t control = control_.load(std::memory_order_relaxed);
  if ((control & kOpen) == 0 || (control & kInside) > most_inside) return false;
  if (next_.load(std::memory_order_relaxed) >= count_.load(std::memory_order_relaxed)) return false;
  if (!control_.compare_exchange_strong(control, control + 1, std::memory_order_acq_rel)) return false;
  RunParts();
  control_.fetch_sub(1, std::memory_order_release);
  return true;
}

// Loops that nobody helps with come first, so that tasks end at about the same time.
bool LoopHelp::JoinAny() {
  for (const uint32_t most_inside : {0u, Loop::kInside - 1}) {
    for (int worker = 0; worker < num_workers_; ++worker) {
      if (loops_[worker].Join(most_inside)) return true;
    }
  }
  return false;
}

void LoopHelp::Help() {
  for (int looks = 1; tasks_left_.load(std::memory_order_acquire) > 0; ++looks) {
    if (JoinAny()) looks = 0;
    if (looks % kLooks == 0) sched_yield();
  }
}

}  // namespace winnow
