#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "common/base/check.h"

namespace winnow {

// Hands out parts of a range of memory that it never touches, in sizes of powers of two, each aligned to its size; the
// lowest free part first, so that small parts stay together. Parts come back in any order.
class BuddyArena {
 public:
  // Both powers of two.
  BuddyArena(size_t bytes, size_t smallest)
      : smallest_(smallest), order_of_(bytes / smallest, kNone), free_(std::bit_width(bytes / smallest)) {
    WINNOW_CHECK(std::has_single_bit(bytes) && std::has_single_bit(smallest) && bytes >= smallest);
    free_.back().insert(0);
  }

  // Offset of a part of at least `bytes`.
  std::optional<size_t> Take(size_t bytes) {
    const size_t order = OrderOf(bytes);
    size_t found = order;
    while (found < free_.size() && free_[found].empty()) ++found;
    if (found >= free_.size()) return std::nullopt;
    const uint32_t part = *free_[found].begin();
    free_[found].erase(free_[found].begin());
    for (; found > order; --found) free_[found - 1].insert(part + (uint32_t{1} << (found - 1)));
    order_of_[part] = static_cast<uint8_t>(order);
    return part * smallest_;
  }
  // False when no part begins there.
  bool GiveBack(size_t offset) {
    if (offset % smallest_ != 0 || offset / smallest_ >= order_of_.size()) return false;
    uint32_t part = static_cast<uint32_t>(offset / smallest_);
    size_t order = order_of_[part];
    if (order == kNone) return false;
    order_of_[part] = kNone;
    for (; order + 1 < free_.size(); ++order) {
      const auto buddy = free_[order].find(part ^ (uint32_t{1} << order));
      if (buddy == free_[order].end()) break;
      part &= ~(uint32_t{1} << order);
      free_[order].erase(buddy);
    }
    free_[order].insert(part);
    return true;
  }
  // What Take hands out for `bytes`.
  size_t RoundedBytes(size_t bytes) const { return smallest_ << OrderOf(bytes); }

 private:
  static constexpr uint8_t kNone = 0xff;
  size_t OrderOf(size_t bytes) const {
    return bytes <= smallest_ ? 0 : static_cast<size_t>(std::bit_width((bytes - 1) / smallest_));
  }

  const size_t smallest_;
  std::vector<uint8_t> order_of_;         // of the part that begins there, while it is out
  std::vector<std::set<uint32_t>> free_;  // by order: first smallest unit of each free part
};

}  // namespace winnow
