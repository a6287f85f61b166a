#pragma once
#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/stream.h"

// Launches whose start overlaps the end of the launch before them (programmatic dependent launch, compute capability
// 9.0): about a microsecond each in a chain of short kernels.
namespace winnow::cuda {

// First thing in a kernel that is launched by LaunchDependent, before it touches memory: what the launches before wrote
// is there.
__device__ inline void AwaitLaunchesBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next launch be set up, up to its own AwaitLaunchesBefore, while this one works. After that, so that what is
// before this launch is complete for the next one too. Not in a kernel that waits for others: blocks of the next launch
// take room that those others may need.
__device__ inline void AllowNextLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

template <typename... Params, typename... Args>
void LaunchDependent(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, Stream stream,
                     Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = DeviceAttribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace winnow::cuda
