#pragma once
#include <cstddef>
#include <span>

#include "common/base/status.h"
#include "transport/wire/wire.h"

namespace winnow {

// Reads arrays of a payload with bounds checks.
class PayloadReader {
 public:
  PayloadReader(std::span<const std::byte> payload, size_t offset) : payload_(payload), offset_(offset) {}

  template <typename T>
  absl::StatusOr<std::span<const T>> Array(size_t count, size_t alignment) {
    offset_ = wire::AlignUp(offset_, alignment);
    if (offset_ > payload_.size() || count > (payload_.size() - offset_) / sizeof(T)) {
      return absl::InvalidArgumentError(absl::StrCat("array of ", count, " x ", sizeof(T), " bytes at ", offset_,
                                                     " exceeds the payload of ", payload_.size()));
    }
    const T* data = reinterpret_cast<const T*>(payload_.data() + offset_);
    offset_ += count * sizeof(T);
    return std::span<const T>(data, count);
  }
  size_t offset() const { return offset_; }

 private:
  std::span<const std::byte> payload_;
  size_t offset_;
};

}  // namespace winnow
