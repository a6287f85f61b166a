#include "cache_rank/selection_window.h"

#include <algorithm>

namespace winnow {

void SelectionWindow::Add(std::span<const uint32_t> selected) {
  if (now_ == kLast) {
    // Numbers run out: those of the window move to the front, older ones count as none.
    constexpr uint8_t kShift = kLast - kSelections;
    std::array<uint32_t, kCounts> counts{};
    for (uint8_t number = kShift + 1; number != 0; ++number) {
      counts[(number - kShift) % kCounts] = counts_[number % kCounts];
    }
    counts_ = counts;
    for (uint8_t& stamp : stamps_) stamp = stamp > kShift ? stamp - kShift : 0;
    now_ = kSelections;
  }
  ++now_;
  if (now_ > kSelections) {  // a selection leaves the window
    uint32_t& leaving = counts_[(now_ - kSelections) % kCounts];
    rows_ -= leaving;
    leaving = 0;
  }
  if (!selected.empty() && selected.back() >= stamps_.size()) {
    stamps_.resize(std::max<size_t>(selected.back() + size_t{1}, stamps_.size() + stamps_.size() / 2));
  }
  uint32_t added = 0;
  for (const uint32_t row : selected) {
    uint8_t& stamp = stamps_[row];
    const bool is_held = stamp != 0 && stamp + kSelections > now_;
    counts_[stamp % kCounts] -= is_held;
    added += !is_held;
    stamp = now_;
  }
  counts_[now_ % kCounts] = static_cast<uint32_t>(selected.size());
  rows_ += added;
}

}  // namespace winnow
