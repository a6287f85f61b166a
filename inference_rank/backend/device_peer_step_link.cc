#include "inference_rank/backend/device_peer_step_link.h"

#include <algorithm>

#include "common/base/status.h"

namespace winnow {
namespace {

// Smaller allocations share pages, which processes map as a whole.
constexpr size_t kLeastExposedBytes = size_t{2} << 20;

}  // namespace

DevicePeerStepLink::DevicePeerStepLink(std::shared_ptr<DevicePeerStepBatch> batch, const PeerStepShape& shape)
    : device_batch_(*batch),
      batch_(std::move(batch)),
      shape_(shape),
      exchange_(device_batch_.exchange()),
      place_(device_batch_.TakePlace(this)) {}

absl::StatusOr<std::unique_ptr<DevicePeerStepLink>> DevicePeerStepLink::Create(
    std::shared_ptr<DevicePeerStepBatch> batch, const PeerStepShape& shape) {
  std::unique_ptr<DevicePeerStepLink> peer_link(new DevicePeerStepLink(std::move(batch), shape));
  if (peer_link->place_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a GPU has ", device::kMaxExchangePeers, " peer links at most"));
  }
  WINNOW_RETURN_IF_ERROR(peer_link->Allocate());
  return peer_link;
}

absl::Status DevicePeerStepLink::Allocate() {
  device::Device& device = device_batch_.device();
  WINNOW_ASSIGN_OR_RETURN(flags_memory_, device.Allocate(std::max(InferenceFlagsBytes(exchange_), kLeastExposedBytes)));
  WINNOW_ASSIGN_OR_RETURN(pinned_,
                          device.AllocatePinned(PeerStepBatch::kMaxStepsUnderWay * num_counts() * sizeof(uint32_t)));
  inbox_ = InferenceInboxAt(exchange_, nullptr, flags_memory_->data(), nullptr);
  device.FillAsync(flags_memory_->data(), 0, flags_memory_->bytes(), device_batch_.stream());
  WINNOW_RETURN_IF_ERROR(device.Synchronize(device_batch_.stream()));
  const device::DeviceMemory* exposed[] = {&device_batch_.slot_memory(), &device_batch_.inbox_memory(),
                                           flags_memory_.get()};
  WINNOW_ASSIGN_OR_RETURN(link_, device::PeerLink::Create(device, exposed));
  return absl::OkStatus();
}

DevicePeerStepLink::~DevicePeerStepLink() {
  if (link_ != nullptr) link_->Abort(absl::CancelledError("the peer link was closed"));
  if (place_ >= 0) device_batch_.LeavePlace(place_);
}

absl::Status DevicePeerStepLink::Connect(std::string_view peer_address) {
  WINNOW_RETURN_IF_ERROR(link_->Connect(peer_address));
  if (link_->num_regions() != 2 || link_->region_bytes(0) < CacheInboxBytes(exchange_) ||
      link_->region_bytes(1) < device::PushStagingBytes(exchange_.layout)) {
    return absl::FailedPreconditionError("the cache rank's peer link is of another shape");
  }
  return absl::OkStatus();
}

device::ExchangePeer DevicePeerStepLink::peer() const {
  return {.inbox = static_cast<std::byte*>(link_->region(0)),
          .delta_flags = inbox_.delta_flags,
          .abort = link_->abort_word(),
          .error = link_->error_word()};
}

void DevicePeerStepLink::EnqueueCounts(uint32_t step, device::Stream stream) {
  device_batch_.device().CopyAsync(CountsOf(step), inbox_.counts, num_counts() * sizeof(uint32_t), stream);
}

}  // namespace winnow
