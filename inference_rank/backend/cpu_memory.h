#pragma once
#include "inference_rank/backend/backend.h"

namespace winnow {

// What a rank that computes on CPUs needs, with weights and activations: the needs that PlanMemory is asked about, by
// the backend and by whoever plans for one. Without a checkpoint weights are taken to be plain ones.
MemoryNeeds CpuMemoryNeeds(const BackendOptions& options);

// INVALID_ARGUMENT where slots are asked for behind a GPU's: those of a CPU are in host memory in any case.
absl::Status CheckSlotHostMemoryOfCpu(uint64_t slot_host_memory_bytes);

}  // namespace winnow
