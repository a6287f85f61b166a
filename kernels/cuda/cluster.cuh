#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace winnow::cuda {

// The CTAs of a cluster (compute capability 9.0) and each other's shared memory. With kCtas = 1 the same code runs
// without clusters.
template <int kCtas>
struct Cluster {
  // All threads of all CTAs; shared memory written before is visible to all of them behind.
  static __device__ void Sync() {
    if constexpr (kCtas == 1) {
      __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
      asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
      __trap();
#endif
    }
  }

  // What CTA `rank` has where this CTA has *own (shared memory).
  template <typename T>
  static __device__ T Read(const T* own, int rank) {
    static_assert(sizeof(T) == 8);
    if constexpr (kCtas == 1) return *own;
    uint64_t bits = 0;
#if __CUDA_ARCH__ >= 900
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(bits) : "r"(address) : "memory");
#endif
    return reinterpret_cast<const T&>(bits);
  }
};

}  // namespace winnow::cuda
