#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/kv_layout.h"
#include "kernels/device/params/exchange.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// Where an inference rank's GPU pushes prompts' rows to (kernels/device/params/exchange.h), and a copy of each place in
// pinned memory. Pushes are taken one after the other; the copy of one holds until the peer uses its place again. One
// thread.
class PushStaging {
 public:
  static absl::StatusOr<std::unique_ptr<PushStaging>> Create(device::Device* device, const KvLayout& layout);

  const device::DeviceMemory& memory() const { return *device_memory_; }  // which the peer writes to
  const void* rows(uint64_t push) const { return device::PushStagingPlace(layout_, device_memory_->data(), push); }

  // INVALID_ARGUMENT when `push` is not the next, all places are under way, or its bytes do not fit one.
  absl::Status CheckNext(uint64_t push, size_t bytes) const;
  // The next push has arrived: enqueues the copy of its first `bytes`, behind what `stream` does with the place before.
  // As CheckNext says where it cannot be the next.
  absl::Status Begin(uint64_t push, size_t bytes, device::Stream stream);
  // The rows of the oldest push that was begun, once they are in host memory and `stream` is done with the place; null
  // before, unless it is to `wait`.
  absl::StatusOr<const std::byte*> Oldest(bool wait);
  void PopOldest() { ++taken_; }

 private:
  PushStaging(device::Device* device, const KvLayout& layout) : device_(device), layout_(layout) {}

  device::Device* const device_;
  const KvLayout layout_;
  std::unique_ptr<device::DeviceMemory> device_memory_, host_memory_;
  std::array<std::unique_ptr<device::Event>, device::kPushStagingPlaces> copied_;  // by place
  uint64_t begun_ = 0, taken_ = 0;                                                 // pushes
};

}  // namespace winnow
