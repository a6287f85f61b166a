#pragma once
#include "inference_rank/backend.h"

namespace winnow {

// A backend on GPU `ordinal`: loads the plugin, checks that GPU and model go together and that everything fits, then
// loads the weights.
//   UNAVAILABLE, NOT_FOUND, FAILED_PRECONDITION: there is no such GPU to compute on; says what is missing
//   UNIMPLEMENTED: the GPU path cannot compute this model or these dtypes
//   RESOURCE_EXHAUSTED: it does not fit; has the arithmetic
absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(const BackendOptions& options, int ordinal);

// True for the errors of NewCudaBackend that leave a choice: computing on the CPU.
bool CpuWouldDo(const absl::Status& status);

}  // namespace winnow
