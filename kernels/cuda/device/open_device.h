#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

// Inside the plugin; DeviceTable says what these do.
namespace winnow::device {

int DeviceCount();
const char* WhyNoDevice();
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal);
DriverVersions Versions();
bool CanAccessPeer(int ordinal, int peer_ordinal);

}  // namespace winnow::device
