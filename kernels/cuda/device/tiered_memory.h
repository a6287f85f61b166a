#pragma once
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace winnow::device {

// One range of device addresses of which the first part lies in the GPU's memory and the rest in the host's DRAM near
// it, pinned, which kernels read over PCIe. Parts are rounded up to the granularity of mappings, so that the second
// begins at `device_bytes` exactly only where that is a multiple of it; data() + device_bytes is the range's
// continuation in any case. UNIMPLEMENTED where the driver cannot map host memory like that.
absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateTieredMemory(int ordinal, size_t device_bytes, size_t host_bytes);

}  // namespace winnow::device
