#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "kernels/device/nccl_pair.h"

namespace winnow::test {

// NCCL pairs of host GPUs, between processes too: what a rank sends is appended to a file in /dev/shm that the pair's
// id and the rank name. Receive holds the calling thread until it is there, for ten seconds at most.
absl::StatusOr<std::string> NewHostNcclId();
absl::StatusOr<std::unique_ptr<device::NcclPair>> OpenHostNcclPair(device::Device& device, std::string_view id,
                                                                   int rank, const device::NcclPairOptions& options);

}  // namespace winnow::test
