#pragma once
#include "inference_rank/backend/backend.h"

namespace winnow {

// What a rank that computes on CPUs needs, with weights and activations: the needs that PlanMemory is asked about, by
// the backend and by whoever plans for one. Without a checkpoint weights are taken to be plain ones.
MemoryNeeds CpuMemoryNeeds(const BackendOptions& options);

}  // namespace winnow
