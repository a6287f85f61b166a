#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device/device.h"

// Inside the plugin; CudaTable says what these do.
namespace winnow::cuda {

int DeviceCount();
const char* WhyNoDevice();
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal);
CudaVersions Versions();
bool CanAccessPeer(int ordinal, int peer_ordinal);

}  // namespace winnow::cuda
