#pragma once
#include <cuda_runtime.h>

#include "kernels/device/params/cache.h"

// Words through which GPUs of one host talk: plain stores and loads at system scope.
namespace winnow::device {

// __threadfence_system would be sequentially consistent, which nothing here needs, and takes longer.
__device__ inline void FenceSystem() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
// What this thread has written or seen comes before the store.
__device__ inline void StoreRelease(uint32_t* word, uint32_t value) {
  FenceSystem();
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ inline uint32_t LoadWord(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline uint64_t GlobalNanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// The words other than the flag may lie in host memory, microseconds away, and the clock is slow to read too: they are
// looked at rarely, and not before a flag that is about to be raised would have come.
struct WaitPatience {
  uint32_t polls_before_first_look = 64, polls_between_looks = 256;
};
// For hundreds of blocks that wait at once, each of which such a look would hold up: about 4 and 16 ms.
__device__ inline WaitPatience PatienceOfMany() {
  return {.polls_before_first_look = 4096, .polls_between_looks = 16384};
}

// By one thread. False when the wait ended without the flag (see WaitParams).
__device__ inline bool WaitFor(const WaitParams& p, uint32_t value, WaitPatience patience = WaitPatience()) {
  uint64_t deadline = 0;
  for (uint32_t poll = 0;; ++poll) {
    // Numbers of plans wrap around.
    if (static_cast<int32_t>(LoadWord(p.flag) - value) >= 0) break;
    if (poll % patience.polls_between_looks != patience.polls_before_first_look) continue;
    if (p.error != nullptr && LoadWord(p.error) != 0) return false;
    const bool aborted = p.abort != nullptr && LoadWord(p.abort) != 0;
    const uint64_t now = GlobalNanoseconds();
    if (deadline == 0) deadline = now + uint64_t{1000} * p.timeout_us;
    if (!aborted && now < deadline) continue;
    if (p.error != nullptr) StoreRelease(p.error, aborted ? kWaitAborted : kWaitTimedOut);
    return false;
  }
  FenceSystem();  // what the other side wrote before it raised the flag is seen after this
  return true;
}

}  // namespace winnow::device
