#pragma once
#include <cstdint>

// Whose turn it is to fetch on a multiprocessor. A block of the next kernel is there early, yet fetches nothing until
// the block that runs on its multiprocessor has fetched all: sooner it would take bandwidth, later the memory would
// idle.
namespace winnow::cuda {

// Of one multiprocessor: blocks that ever began on it, and that have fetched all they fetch. They wrap around.
struct Turns {
  uint32_t begun, fetched;
};
inline constexpr int kMaxMultiprocessors = 512;

__device__ inline Turns* TurnsHere(Turns* turns) {
  uint32_t multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  return turns + multiprocessor % kMaxMultiprocessors;
}

// Never longer than until `released` is set in shared memory, when earlier kernels have ended, so that two blocks of
// one kernel on a multiprocessor do not wait for each other.
__device__ inline void AwaitTurn(Turns* turns, const int& released) {
  Turns* const here = TurnsHere(turns);
  const uint32_t begun_before = atomicAdd(&here->begun, 1);
  const volatile uint32_t* const fetched = &here->fetched;
  const volatile int* const is_released = &released;
  while (static_cast<int>(*fetched - begun_before) < 0 && *is_released == 0) {
  }
}

__device__ inline void HaveFetched(Turns* turns) {
  atomicAdd(&TurnsHere(turns)->fetched, 1);
}

}  // namespace winnow::cuda
