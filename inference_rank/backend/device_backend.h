#pragma once
#include <span>

#include "inference_rank/backend/backend.h"

namespace winnow {

// A backend on one GPU, or on several that hold the model together: loads the plugin, checks that GPUs and model go
// together and that everything fits, then loads the weights.
//   UNAVAILABLE, NOT_FOUND, FAILED_PRECONDITION: there is no such GPU to compute on; says what is missing
//   UNIMPLEMENTED: the GPU path cannot compute this model or these dtypes
//   INVALID_ARGUMENT: that many GPUs cannot share its heads
//   RESOURCE_EXHAUSTED: it does not fit; has the arithmetic
absl::StatusOr<std::unique_ptr<Backend>> NewDeviceBackend(const BackendOptions& options, std::span<const int> ordinals);

// True for the errors of NewDeviceBackend that leave a choice: computing on the CPU.
bool CpuWouldDo(const absl::Status& status);

}  // namespace winnow
