#include "cache_rank/step/device/push_staging.h"

#include "common/base/status.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<PushStaging>> PushStaging::Create(device::Device* device, const KvLayout& layout) {
  std::unique_ptr<PushStaging> staging(new PushStaging(device, layout));
  WINNOW_ASSIGN_OR_RETURN(staging->device_memory_, device->Allocate(device::PushStagingBytes(layout)));
  WINNOW_ASSIGN_OR_RETURN(staging->host_memory_, device->AllocatePinned(device::PushStagingBytes(layout)));
  for (auto& event : staging->copied_) event = device->NewEvent();
  return staging;
}

absl::Status PushStaging::CheckNext(uint64_t push, size_t bytes) const {
  if (push != begun_ + 1 || begun_ - taken_ >= device::kPushStagingPlaces ||
      bytes > device::PushStagingPlaceBytes(layout_)) {
    return absl::InvalidArgumentError(absl::StrCat("push ", push, " of ", bytes, " bytes after push ", begun_, ", ",
                                                   begun_ - taken_, " of which are under way"));
  }
  return absl::OkStatus();
}

absl::Status PushStaging::Begin(uint64_t push, size_t bytes, device::Stream stream) {
  WINNOW_RETURN_IF_ERROR(CheckNext(push, bytes));
  begun_ = push;
  device_->CopyAsync(device::PushStagingPlace(layout_, host_memory_->data(), push), rows(push), bytes, stream);
  copied_[(push - 1) % device::kPushStagingPlaces]->Record(stream);
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> PushStaging::Oldest(bool wait) {
  if (taken_ == begun_) return nullptr;
  device::Event& copied = *copied_[taken_ % device::kPushStagingPlaces];
  if (wait) {
    WINNOW_RETURN_IF_ERROR(copied.Wait());
  } else {
    WINNOW_ASSIGN_OR_RETURN(const bool has_passed, copied.HasPassed());
    if (!has_passed) return nullptr;
  }
  return static_cast<const std::byte*>(device::PushStagingPlace(layout_, host_memory_->data(), taken_ + 1));
}

}  // namespace winnow
