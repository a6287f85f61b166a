#pragma once
#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/stream.h"

namespace winnow::cuda {

// Programmatic dependent launch: a kernel may start while the one before it on the stream still runs, and does what
// does not depend on it (fetching weights) meanwhile. A kernel launched so MUST call WaitForEarlierKernels in every
// thread that touches memory which earlier kernels write or read. Kernels launched otherwise stay fully ordered.

// Returns when all earlier kernels of the stream have completed and their writes are visible.
__device__ inline void WaitForEarlierKernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Once every block has called this (one thread is enough) or ended, the next kernel may start.
__device__ inline void LetNextKernelStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Launches with that permission. Works under graph capture; GPUs before sm_90 ignore the attribute's meaning and are
// launched plainly.
template <typename... Parameters, typename... Arguments>
void LaunchProgrammatic(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Stream stream,
                        Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace winnow::cuda
