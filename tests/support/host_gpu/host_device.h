#pragma once
#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"

namespace winnow::test {

// A GPU made of this process's memory: what is enqueued has run when the call returns, and launchers are functions of
// the CPU. With WINNOW_HOST_GPU_FAULT_AFTER=N in the environment the device fails for good at the N-th wait.
absl::StatusOr<std::unique_ptr<cuda::Device>> OpenHostDevice(int ordinal);
inline constexpr int kHostDevices = 2;

}  // namespace winnow::test
