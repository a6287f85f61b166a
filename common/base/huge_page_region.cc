#include "common/base/huge_page_region.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace winnow {

absl::StatusOr<HugePageRegion> HugePageRegion::Allocate(size_t bytes) {
  HugePageRegion region;
  if (bytes == 0) return region;
  // One page more than asked for, so that the start can be moved to a page boundary.
  region.mapping_bytes_ = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes;
  void* mapping = ::mmap(nullptr, region.mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes: ", std::strerror(errno)));
  }
  region.mapping_ = mapping;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  region.data_ = reinterpret_cast<uint8_t*>((address + kPageBytes - 1) / kPageBytes * kPageBytes);
  region.bytes_ = bytes;
  // Advice only: where huge pages are switched off, weights are slower to read but right.
  (void)::madvise(region.data_, region.mapping_bytes_ - kPageBytes, MADV_HUGEPAGE);
  return region;
}

HugePageRegion::HugePageRegion(HugePageRegion&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

HugePageRegion& HugePageRegion::operator=(HugePageRegion&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HugePageRegion::~HugePageRegion() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

}  // namespace winnow
