#pragma once
#include <cuda_runtime.h>

namespace winnow::device {

// Loads this family's kernels onto the current device: the error when the build has none for its architecture.
cudaError_t LoadRowKernels();

}  // namespace winnow::device
