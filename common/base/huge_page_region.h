#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace winnow {

// Zeroed anonymous memory that the kernel is asked to back with huge pages: a decode step streams all weights, and with
// 4 KiB pages it would miss the TLB every 64 cache lines. Move-only; freed on destruction. Aligned to 2 MiB.
class HugePageRegion {
 public:
  static constexpr size_t kPageBytes = size_t{2} << 20;

  // RESOURCE_EXHAUSTED names the bytes. `bytes` may be 0.
  static absl::StatusOr<HugePageRegion> Allocate(size_t bytes);

  HugePageRegion() = default;
  HugePageRegion(HugePageRegion&& other) noexcept;
  HugePageRegion& operator=(HugePageRegion&& other) noexcept;
  ~HugePageRegion();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace winnow
