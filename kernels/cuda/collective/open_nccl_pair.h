#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/device/nccl_pair.h"

// Inside the plugin; DeviceTable says what these do.
namespace winnow::device {

absl::StatusOr<std::string> NewNcclId();
absl::StatusOr<std::unique_ptr<NcclPair>> OpenNcclPair(Device& device, std::string_view id, int rank,
                                                       const NcclPairOptions& options);

}  // namespace winnow::device
