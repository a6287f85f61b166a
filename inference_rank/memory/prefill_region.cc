#include "inference_rank/memory/prefill_region.h"

#include <algorithm>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

PrefillRegion::PrefillRegion(std::vector<std::byte*> memories, size_t bytes_each) : memories_(std::move(memories)) {
  if (bytes_each >= kAlignment) free_[0] = bytes_each / kAlignment * kAlignment;
}

absl::StatusOr<size_t> PrefillRegion::Take(size_t bytes) {
  const size_t unit = kAlignment * memories_.size();
  const size_t wanted = std::max<size_t>(1, (bytes + unit - 1) / unit) * kAlignment;
  const auto part = std::find_if(free_.begin(), free_.end(), [&](const auto& entry) { return entry.second >= wanted; });
  if (part == free_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat("a prompt needs ", wanted * memories_.size(),
                                                     " bytes of prefill memory in one piece, ", largest_free(),
                                                     " are free"));
  }
  const auto [offset, size] = *part;
  free_.erase(part);
  if (size > wanted) free_[offset + wanted] = size - wanted;
  taken_[offset] = wanted;
  return offset;
}

void PrefillRegion::GiveBack(size_t offset) {
  const auto taken = taken_.find(offset);
  WINNOW_CHECK(taken != taken_.end());
  size_t size = taken->second;
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
  return largest * memories_.size();
}

}  // namespace winnow
