#pragma once
#include <cstdint>
#include <memory>

#include "kernels/device/device.h"

namespace winnow::test {

// A GPU made of this process's memory: what is enqueued has run when the call returns, and launchers are functions of
// the CPU. The device fails for good once the file that $WINNOW_HOST_GPU_FAULT names holds this process's id,
// and its own number or none behind it;
// $WINNOW_HOST_GPU_NO_PEERS keeps devices from each other's memory.
absl::StatusOr<std::unique_ptr<device::Device>> OpenHostDevice(int ordinal);
inline constexpr int kHostDevices = 6;
// What this process has allocated on its devices, pinned memory not counted.
size_t HostDeviceBytes();

}  // namespace winnow::test
