#pragma once
#include <cuda_runtime.h>

#include "kernels/device/stream.h"

// Programmatic dependent launch: the CTAs of a kernel are set up while the kernel before it still runs, and wait for
// its results on the device. In a captured graph this becomes a programmatic edge. Kernels that are launched so read
// nothing a kernel may have written before WaitForInputs(); constants (weights) may be read earlier, provided that they
// were there before the stream's work began.

namespace winnow::device {

// Until every kernel before this one has ended and its writes are visible. Needed in each kernel that
// LaunchDependent launches, also where it reads nothing: what follows may rely on it through this kernel.
__device__ inline void WaitForInputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's CTAs take the places that this grid leaves free. Behind WaitForInputs, where they would take
// places that kernels before this one need; before it in small kernels between two products, so that weights of the
// next one are on their way while the one before still drains. The kernel behind waits for this one all the same, and
// this one for all before it.
__device__ inline void LetDependentsStart() {
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
inline int ComputeMajor() {
  return DeviceAttribute(cudaDevAttrComputeCapabilityMajor);
}

struct LaunchShape {
  dim3 grid;
  unsigned threads = 0;
  size_t shared_bytes = 0;    // dynamic
  unsigned cluster_ctas = 1;  // of consecutive blockIdx.x; more than 1 needs compute capability 9.0
};

template <typename... Params, typename... Args>
void LaunchDependent(void (*kernel)(Params...), const LaunchShape& shape, Stream stream, const Args&... args) {
  if (shape.shared_bytes > 0) {  // static shared memory counts towards the limit that needs asking, too
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
  }
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (ComputeMajor() >= 9) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster_ctas > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = shape.cluster_ctas;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace winnow::device
