#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace winnow::device {

// Whether the devices that this compilation is for have clusters of blocks. A kernel that is launched on such devices
// alone returns at once where they have none: compilers then leave out the rest of it, which takes them most of their
// time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kHasClusters = false;
#else
inline constexpr bool kHasClusters = true;
#endif

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

// Thread block clusters, and single blocks where there are none (before sm_90 every cluster has one block).

__device__ __forceinline__ uint32_t ClusterRank() {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// Blocks of the cluster.
__device__ __forceinline__ uint32_t ClusterBlocks() {
#if __CUDA_ARCH__ >= 900
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
#else
  return 1;
#endif
}

// Everything that threads of the cluster wrote before, to shared or global memory, is visible to all of them behind it.
__device__ __forceinline__ void ClusterSync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The same in two halves: what lies between may wait for nobody. Each half must be called in turn.
__device__ __forceinline__ void ClusterArrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void ClusterWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Where `local`, an address of this block's shared memory, lies in the block of that rank.
template <typename T>
__device__ __forceinline__ T* OfRank(T* local, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(reinterpret_cast<uint64_t>(local)), "r"(rank));
  return reinterpret_cast<T*>(remote);
#else
  return local;
#endif
}

// A barrier in shared memory for one arrival and the bytes that it announces, phase by phase. Blocks of the cluster see
// it behind their next ClusterArrive and ClusterWait.
__device__ __forceinline__ void InitClusterBarrier(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
#endif
}
__device__ __forceinline__ void ExpectInCluster(uint64_t* barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
               "r"(bytes)
               : "memory");
#endif
}
// Until the phase of that parity has ended, the first one's is 0; what the additions wrote is visible then.
__device__ __forceinline__ void WaitInCluster(uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t ended = 0;
  while (ended == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(ended)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))), "r"(parity)
        : "memory");
  }
#endif
}
// Between plain writes to shared memory and its reading by the copy engine, by each writer, before a barrier.
__device__ __forceinline__ void FenceSharedForCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
__device__ __forceinline__ uint32_t ClusterAddress(const void* of_rank) {
  uint64_t address = 0;
#if __CUDA_ARCH__ >= 900
  asm("cvta.to.shared::cluster.u64 %0, %1;" : "=l"(address) : "l"(of_rank));
#endif
  return static_cast<uint32_t>(address);
}
// Adds 32-bit words of this block's shared memory to another's (OfRank): a multiple of 16 bytes, which the other's
// barrier counts. Plain stores cross at 4 bytes a cycle only.
__device__ __forceinline__ void AddInCluster(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%0], [%1], %2, "
      "[%3];" ::"r"(ClusterAddress(to)),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes), "r"(ClusterAddress(barrier))
      : "memory");
#endif
}

// One arrival at another block's barrier (OfRank), which announces bytes to it; releases this thread's writes.
__device__ __forceinline__ void ArriveInClusterExpecting(uint64_t* barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(ClusterAddress(barrier)),
      "r"(bytes)
      : "memory");
#endif
}
// From this block's shared memory to another's (OfRank): a multiple of 16 bytes, which the other's barrier counts.
__device__ __forceinline__ void CopyInCluster(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   ClusterAddress(to)),
               "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes), "r"(ClusterAddress(barrier))
               : "memory");
#endif
}
// From global memory to this block's shared memory: a multiple of 16 bytes, which the block's barrier counts.
__device__ __forceinline__ void CopyBulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(bytes),
               "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
#endif
}

}  // namespace winnow::device
