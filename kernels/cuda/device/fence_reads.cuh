#pragma once

namespace winnow::device {

// Before a thread arrives to give back what it has read of shared memory: without it the copy engine may write there
// before loads that were issued earlier have read. An arrival does not wait for them, and passes them where another
// kernel's loads hold up those of the multiprocessor.
__device__ inline void FenceReadsForCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace winnow::device
