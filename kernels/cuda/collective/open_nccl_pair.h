#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cuda/collective/nccl_pair.h"

// Inside the plugin; CudaTable says what these do.
namespace winnow::cuda {

absl::StatusOr<std::string> NewNcclId();
absl::StatusOr<std::unique_ptr<NcclPair>> OpenNcclPair(Device& device, std::string_view id, int rank,
                                                       const NcclPairOptions& options);

}  // namespace winnow::cuda
