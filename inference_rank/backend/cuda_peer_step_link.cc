#include "inference_rank/backend/cuda_peer_step_link.h"

#include <algorithm>

#include "common/base/status.h"

namespace winnow {
namespace {

// Smaller allocations share pages, which processes map as a whole.
constexpr size_t kLeastExposedBytes = size_t{2} << 20;

}  // namespace

CudaPeerStepLink::CudaPeerStepLink(std::shared_ptr<CudaPeerStepBatch> batch, const PeerStepShape& shape)
    : cuda_batch_(*batch),
      batch_(std::move(batch)),
      shape_(shape),
      exchange_(cuda_batch_.exchange()),
      place_(cuda_batch_.TakePlace(this)) {}

absl::StatusOr<std::unique_ptr<CudaPeerStepLink>> CudaPeerStepLink::Create(std::shared_ptr<CudaPeerStepBatch> batch,
                                                                           const PeerStepShape& shape) {
  std::unique_ptr<CudaPeerStepLink> peer_link(new CudaPeerStepLink(std::move(batch), shape));
  if (peer_link->place_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a GPU has ", cuda::kMaxExchangePeers, " peer links at most"));
  }
  WINNOW_RETURN_IF_ERROR(peer_link->Allocate());
  return peer_link;
}

absl::Status CudaPeerStepLink::Allocate() {
  cuda::Device& device = cuda_batch_.device();
  WINNOW_ASSIGN_OR_RETURN(flags_memory_, device.Allocate(std::max(InferenceFlagsBytes(exchange_), kLeastExposedBytes)));
  WINNOW_ASSIGN_OR_RETURN(pinned_,
                          device.AllocatePinned(PeerStepBatch::kMaxStepsUnderWay * num_counts() * sizeof(uint32_t)));
  inbox_ = InferenceInboxAt(exchange_, nullptr, flags_memory_->data(), nullptr);
  device.FillAsync(flags_memory_->data(), 0, flags_memory_->bytes(), cuda_batch_.stream());
  WINNOW_RETURN_IF_ERROR(device.Synchronize(cuda_batch_.stream()));
  const cuda::DeviceMemory* exposed[] = {&cuda_batch_.slot_memory(), &cuda_batch_.inbox_memory(), flags_memory_.get()};
  WINNOW_ASSIGN_OR_RETURN(link_, cuda::PeerLink::Create(device, exposed));
  return absl::OkStatus();
}

CudaPeerStepLink::~CudaPeerStepLink() {
  if (link_ != nullptr) link_->Abort(absl::CancelledError("the peer link was closed"));
  if (place_ >= 0) cuda_batch_.LeavePlace(place_);
}

absl::Status CudaPeerStepLink::Connect(std::string_view peer_address) {
  WINNOW_RETURN_IF_ERROR(link_->Connect(peer_address));
  if (link_->num_regions() != 2 || link_->region_bytes(0) < CacheInboxBytes(exchange_) ||
      link_->region_bytes(1) < cuda::PushStagingBytes(exchange_.layout)) {
    return absl::FailedPreconditionError("the cache rank's peer link is of another shape");
  }
  return absl::OkStatus();
}

cuda::ExchangePeer CudaPeerStepLink::peer() const {
  return {.inbox = static_cast<std::byte*>(link_->region(0)),
          .delta_flags = inbox_.delta_flags,
          .abort = link_->abort_word(),
          .error = link_->error_word()};
}

void CudaPeerStepLink::EnqueueCounts(uint32_t step, cuda::Stream stream) {
  cuda_batch_.device().CopyAsync(CountsOf(step), inbox_.counts, num_counts() * sizeof(uint32_t), stream);
}

}  // namespace winnow
