#include "tests/support/host_gpu/host_flags.h"

#include <sched.h>

#include <atomic>
#include <chrono>

namespace winnow::test {
namespace {

std::atomic_ref<uint32_t> Word(const uint32_t* word) {
  return std::atomic_ref(*const_cast<uint32_t*>(word));
}

}  // namespace

void Raise(device::Stream, const device::RaiseParams& p) {
  Word(p.flag).store(*p.value, std::memory_order_release);
}

void Wait(device::Stream, const device::WaitParams& p) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(4 * uint64_t{p.timeout_us});
  while (static_cast<int32_t>(Word(p.flag).load(std::memory_order_acquire) - *p.value) < 0) {
    if (p.error != nullptr && Word(p.error).load() != 0) return;
    const bool aborted = p.abort != nullptr && Word(p.abort).load() != 0;
    if (aborted || std::chrono::steady_clock::now() > end) {
      if (p.error != nullptr) Word(p.error).store(aborted ? device::kWaitAborted : device::kWaitTimedOut);
      return;
    }
    sched_yield();
  }
}

}  // namespace winnow::test
