#include "inference_rank/backend/cuda_decode_lane.h"

#include <algorithm>

#include "common/base/status.h"

namespace winnow {
namespace {

// Smaller allocations share pages, which processes map as a whole.
constexpr size_t kLeastExposedBytes = size_t{2} << 20;

}  // namespace

CudaDecodeLane::CudaDecodeLane(std::shared_ptr<CudaLaneGroup> group, const DecodeLaneShape& shape)
    : cuda_group_(*group),
      group_(std::move(group)),
      shape_(shape),
      exchange_(cuda_group_.exchange()),
      place_(cuda_group_.TakePlace(this)) {}

absl::StatusOr<std::unique_ptr<CudaDecodeLane>> CudaDecodeLane::Create(std::shared_ptr<CudaLaneGroup> group,
                                                                       const DecodeLaneShape& shape) {
  std::unique_ptr<CudaDecodeLane> lane(new CudaDecodeLane(std::move(group), shape));
  if (lane->place_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a GPU has ", cuda::kMaxExchangePeers, " lanes at most"));
  }
  WINNOW_RETURN_IF_ERROR(lane->Allocate());
  return lane;
}

absl::Status CudaDecodeLane::Allocate() {
  cuda::Device& device = cuda_group_.device();
  WINNOW_ASSIGN_OR_RETURN(flags_memory_, device.Allocate(std::max(InferenceFlagsBytes(exchange_), kLeastExposedBytes)));
  WINNOW_ASSIGN_OR_RETURN(pinned_, device.AllocatePinned(num_counts() * sizeof(uint32_t)));
  inbox_ = InferenceInboxAt(exchange_, nullptr, flags_memory_->data(), nullptr);
  device.FillAsync(flags_memory_->data(), 0, flags_memory_->bytes(), cuda_group_.stream());
  WINNOW_RETURN_IF_ERROR(device.Synchronize(cuda_group_.stream()));
  const cuda::DeviceMemory* exposed[] = {&cuda_group_.slot_memory(), &cuda_group_.inbox_memory(), flags_memory_.get()};
  WINNOW_ASSIGN_OR_RETURN(link_, cuda::PeerLink::Create(device, exposed));
  return absl::OkStatus();
}

CudaDecodeLane::~CudaDecodeLane() {
  if (link_ != nullptr) link_->Abort(absl::CancelledError("the lane was closed"));
  if (place_ >= 0) cuda_group_.LeavePlace(place_);
}

absl::Status CudaDecodeLane::Connect(std::string_view peer_address) {
  WINNOW_RETURN_IF_ERROR(link_->Connect(peer_address));
  if (link_->num_regions() != 2 || link_->region_bytes(0) < CacheInboxBytes(exchange_) ||
      link_->region_bytes(1) < cuda::LandingBytes(exchange_.layout)) {
    return absl::FailedPreconditionError("the cache rank's lane is of another shape");
  }
  return absl::OkStatus();
}

cuda::ExchangePeer CudaDecodeLane::peer() const {
  return {.inbox = static_cast<std::byte*>(link_->region(0)),
          .delta_flags = inbox_.delta_flags,
          .abort = link_->abort_word(),
          .error = link_->error_word()};
}

void CudaDecodeLane::EnqueueCounts(cuda::Stream stream) {
  cuda_group_.device().CopyAsync(pinned_->data(), inbox_.counts, num_counts() * sizeof(uint32_t), stream);
}

}  // namespace winnow
