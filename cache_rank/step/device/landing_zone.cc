#include "cache_rank/step/device/landing_zone.h"

#include "common/base/status.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<LandingZone>> LandingZone::Create(cuda::Device* device, const KvLayout& layout) {
  std::unique_ptr<LandingZone> zone(new LandingZone(device, layout));
  WINNOW_ASSIGN_OR_RETURN(zone->device_memory_, device->Allocate(cuda::LandingBytes(layout)));
  WINNOW_ASSIGN_OR_RETURN(zone->host_memory_, device->AllocatePinned(cuda::LandingBytes(layout)));
  for (auto& event : zone->copied_) event = device->NewEvent();
  return zone;
}

absl::Status LandingZone::CheckNext(uint64_t push, size_t bytes) const {
  if (push != begun_ + 1 || begun_ - taken_ >= cuda::kLandingPlaces || bytes > cuda::LandingPlaceBytes(layout_)) {
    return absl::InvalidArgumentError(absl::StrCat("push ", push, " of ", bytes, " bytes after push ", begun_, ", ",
                                                   begun_ - taken_, " of which are under way"));
  }
  return absl::OkStatus();
}

absl::Status LandingZone::Begin(uint64_t push, size_t bytes, cuda::Stream stream) {
  WINNOW_RETURN_IF_ERROR(CheckNext(push, bytes));
  begun_ = push;
  device_->CopyAsync(cuda::LandingPlace(layout_, host_memory_->data(), push), rows(push), bytes, stream);
  copied_[(push - 1) % cuda::kLandingPlaces]->Record(stream);
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> LandingZone::Oldest(bool wait) {
  if (taken_ == begun_) return nullptr;
  cuda::Event& copied = *copied_[taken_ % cuda::kLandingPlaces];
  if (wait) {
    WINNOW_RETURN_IF_ERROR(copied.Wait());
  } else {
    WINNOW_ASSIGN_OR_RETURN(const bool has_passed, copied.HasPassed());
    if (!has_passed) return nullptr;
  }
  return static_cast<const std::byte*>(cuda::LandingPlace(layout_, host_memory_->data(), taken_ + 1));
}

}  // namespace winnow
