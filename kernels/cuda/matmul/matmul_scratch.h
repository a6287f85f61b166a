#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/matmul/matmul_cuts.cuh"
#include "kernels/cuda/matmul/matmul_turns.cuh"
#include "kernels/cuda/matmul/packed_forms.cuh"

// What launches of decode products have in common.
namespace winnow::cuda {

inline constexpr int kMaxDecodeMatmulRows = 64;
// Of the scratch: parts of sums, turns of multiprocessors.
inline constexpr size_t kPartBytes =
    size_t{kMaxTeams * kTeamBlocks} * kPassStrips * kStripOut * kMaxDecodeMatmulRows * sizeof(float);
static_assert(kMaxTeams * kTeamBlocks >= kMatmulBlocks);
inline constexpr size_t kTurnBytes = kMaxMultiprocessors * sizeof(Turns);

// Dynamic shared memory of a block that finds room on a multiprocessor beside one of another product, but not beside
// its like.
inline size_t SpreadBytes() {
  const int half = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  return std::min(half - 768, DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024);
}

// Two blocks to a multiprocessor: the next kernel's fills its ring while this one runs.
template <typename Args>
void LaunchProduct(void (*kernel)(Args), int blocks, int threads, size_t shared_bytes, bool spread, Stream stream,
                   const Args& args) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  const LaunchShape shape = {.grid = dim3(blocks),
                             .threads = static_cast<unsigned>(threads),
                             .shared_bytes = spread ? std::max(shared_bytes, SpreadBytes()) : shared_bytes};
  LaunchDependent(kernel, shape, stream, args);
}

}  // namespace winnow::cuda
