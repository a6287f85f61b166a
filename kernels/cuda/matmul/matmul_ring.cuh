#pragma once
#include <cuda.h>

#include <cstdint>

// Barriers in shared memory and asynchronous copies that complete on them: of boxes by tensor maps where the GPU has
// them (sm_90), of 16 bytes a lane elsewhere.
namespace winnow::device {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kTensorMaps = false;
#else
inline constexpr bool kTensorMaps = true;
#endif

__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers just initialised visible to the copy engine.
__device__ inline void PublishBarriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Whether the phase of that parity has ended; may wait for it a little.
__device__ inline bool TryBarrier(uint32_t barrier, uint32_t parity) {
  uint32_t done;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
#else
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
#endif
  return done != 0;
}

__device__ inline void WaitBarrier(uint32_t barrier, uint32_t parity) {
  while (!TryBarrier(barrier, parity)) {
  }
}

__device__ inline void ArriveBarrier(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// One arrival, and the number of bytes that copies will bring.
__device__ inline void ArriveExpectBytes(uint32_t barrier, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(barrier),
               "r"(bytes)
               : "memory");
#endif
}

// Arrives when this lane's copies so far are done; without bulk copies every lane of the warp calls it once a phase.
__device__ inline void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// How the L2 keeps what a copy reads: weights are read once a step and leave first.
__device__ inline uint64_t EvictFirst() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t EvictLast() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A box of a matrix that a tensor map describes, at (column, row), to shared memory in the 128-byte swizzle: 16-byte
// piece c of a row of 128 bytes lies at piece c ^ (row % 8). What is outside of the matrix comes as zeros, and counts
// as bytes that arrived. sm_90.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier,
                               uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
#endif
}

// So many bytes in a row, a multiple of 16 as are both addresses. sm_90.
__device__ inline void CopyBytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}

// The same by the lanes of a warp.
__device__ inline void CopyBytesByLanes(uint32_t to, const char* from, int bytes) {
  for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at) : "memory");
  }
}

// Has the copy engine fetch the map itself.
__device__ inline void PrefetchMap(const CUtensorMap& map) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// The same box where there are no tensor maps, by the lanes of a warp: `rows` rows of 128 bytes `pitch` bytes apart, of
// which valid_rows rows and valid_bytes bytes (a multiple of 16) exist.
__device__ inline void CopyBoxByLanes(uint32_t to, const char* from, int64_t pitch, int rows, int valid_rows,
                                      int valid_bytes) {
  for (int piece = threadIdx.x % 32; piece < rows * 8; piece += 32) {
    const int row = piece / 8, column = piece % 8;
    const bool exists = row < valid_rows && column * 16 < valid_bytes;
    const char* source = exists ? from + row * pitch + column * 16 : from;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + row * 128 + ((column ^ (row % 8)) << 4)),
                 "l"(source), "r"(exists ? 16 : 0)
                 : "memory");
  }
}

}  // namespace winnow::device
