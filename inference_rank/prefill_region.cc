#include "inference_rank/prefill_region.h"

#include <algorithm>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

PrefillRegion::PrefillRegion(void* memory, size_t bytes) : memory_(static_cast<std::byte*>(memory)) {
  if (bytes >= kAlignment) free_[0] = bytes / kAlignment * kAlignment;
}

absl::StatusOr<std::byte*> PrefillRegion::Take(size_t bytes) {
  const size_t wanted = std::max<size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  const auto part = std::find_if(free_.begin(), free_.end(), [&](const auto& entry) { return entry.second >= wanted; });
  if (part == free_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a prompt needs ", wanted, " bytes of prefill memory in one piece, ", largest_free(), " are free"));
  }
  const auto [offset, size] = *part;
  free_.erase(part);
  if (size > wanted) free_[offset + wanted] = size - wanted;
  taken_[offset] = wanted;
  return memory_ + offset;
}

void PrefillRegion::GiveBack(std::byte* part) {
  const auto taken = taken_.find(static_cast<size_t>(part - memory_));
  WINNOW_CHECK(taken != taken_.end());
  size_t offset = taken->first, size = taken->second;
  taken_.erase(taken);
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (after != free_.end() && offset + size == after->first) {
    size += after->second;
    free_.erase(after);
  }
  free_[offset] = size;
}

size_t PrefillRegion::largest_free() const {
  size_t largest = 0;
  for (const auto& [offset, size] : free_) largest = std::max(largest, size);
  return largest;
}

}  // namespace winnow
