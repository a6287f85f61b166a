#pragma once
#include <cstdint>
#include <optional>

#include "inference_rank/backend/backend.h"
#include "inference_rank/backend/device_forward.h"
#include "inference_rank/backend/device_local_step.h"
#include "kernels/plugin/device_table.h"
#include "model/peer_step_link.h"

namespace winnow {

// What a rank on GPUs will have in the memory of each of them, worked out before anything is allocated there.
struct DeviceRankPlan {
  DeviceForward::Options forward;  // without num_slots
  absl::StatusOr<PeerStepShape> peer_link = absl::FailedPreconditionError("frames alone were asked for");
  std::optional<DeviceLocalStep::Shape> local_step;  // nullopt: GPUs that do not reach each other
  MemoryNeeds needs;                                 // of each GPU, weights and activations included
};

// Whether slots may lie in host memory behind those of so many GPUs, where that is asked for.
absl::Status CheckSlotHostMemory(const BackendOptions& options, int num_gpus);

// Of a model that `num_gpus` GPUs share. `peers`: whether they reach each other's memory, or why not. The device model
// must have been checked (CheckDeviceModel).
DeviceRankPlan PlanDeviceRank(const device::DeviceTable& table, const BackendOptions& options, int num_gpus,
                              const absl::Status& peers);

// The same where no plugin is there to ask: weights without padding, and activations that are estimated to within some
// hundred MiB. `num_gpus_there`: of the machine, which cache ranks may have the others of.
MemoryNeeds EstimateDeviceNeeds(const BackendOptions& options, int num_gpus, int num_gpus_there);

// Of a GPU's free memory, what a rank may take: the rest is the driver's own, for kernels, libraries and page tables.
uint64_t UsableGpuBytes(uint64_t free_bytes);

}  // namespace winnow
