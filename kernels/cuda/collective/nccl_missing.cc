#include "kernels/cuda/collective/open_nccl_pair.h"

// Instead of nccl_pair.cc where nccl.h was not found.
namespace winnow::device {

absl::StatusOr<std::string> NewNcclId() {
  return absl::UnavailableError("the CUDA backend was built without NCCL");
}

absl::StatusOr<std::unique_ptr<NcclPair>> OpenNcclPair(Device&, std::string_view, int, const NcclPairOptions&) {
  return absl::UnavailableError("the CUDA backend was built without NCCL");
}

}  // namespace winnow::device
