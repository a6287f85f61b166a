#pragma once
#include "inference_rank/backend/backend.h"

namespace winnow {

// Checks that everything fits memory, then loads. `isa`: as for CpuKernels. RESOURCE_EXHAUSTED has the arithmetic.
absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const BackendOptions& options, const std::string& isa,
                                                       int num_threads);

}  // namespace winnow
