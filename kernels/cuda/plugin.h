#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/table.h"

namespace winnow::cuda {

// Loads the plugin, once per process: libwinnow_cuda.so from $WINNOW_CUDA_PLUGIN, the program's folder or its ../lib.
// UNAVAILABLE says what is missing: the plugin, a CUDA library (by its name), a driver, a GPU.
absl::StatusOr<const CudaTable*> LoadPlugin();

}  // namespace winnow::cuda
