#pragma once
#include <cuda_runtime.h>

namespace winnow::cuda {

// Programmatic dependent launch: a kernel may begin while the one before it in the stream ends. Memory of that kernel
// may be touched behind WaitForPrerequisites alone. Both do nothing in kernels that are launched plainly.
__device__ __forceinline__ void WaitForPrerequisites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void LetDependentsLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace winnow::cuda
