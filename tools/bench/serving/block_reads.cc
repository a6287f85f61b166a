#include "tools/bench/serving/block_reads.h"

#include <algorithm>

namespace winnow::serving {
namespace {

constexpr uint64_t kWindow = 12;

}  // namespace

BlockReads::BlockReads(uint32_t budget_rows, uint64_t seed)
    : units_(std::max(1u, budget_rows / kUnitRows)), random_(static_cast<uint32_t>(seed % 2147483646 + 1)) {}

bool BlockReads::Holds(uint32_t unit, const uint32_t* beside) const {
  return std::any_of(current_.begin(), current_.end(),
                     [&](const uint32_t& held) { return held == unit && &held != beside; });
}

bool BlockReads::WasDropped(uint32_t unit) const {
  return std::any_of(dropped_.begin(), dropped_.end(), [&](const Dropped& dropped) { return dropped.unit == unit; });
}

std::span<const uint32_t> BlockReads::Next(uint32_t context_rows) {
  const uint32_t all = std::max(1u, context_rows / kUnitRows);
  const auto uniform = [&] { return static_cast<double>(random_()) / 2147483647.0; };
  const auto anywhere = [&] { return static_cast<uint32_t>(random_() % all); };
  if (all <= 4 * units_) {
    // Too short for a window of selections: as many as are read, always the same.
    current_.resize(std::min(all, units_));
    for (uint32_t i = 0; i < current_.size(); ++i) current_[i] = i;
    return current_;
  }
  while (current_.size() < units_) {
    const uint32_t unit = anywhere();
    if (!Holds(unit, nullptr)) current_.push_back(unit);
  }
  ++selections_;
  std::erase_if(dropped_, [&](const Dropped& dropped) { return dropped.selection + kWindow <= selections_; });
  // Chosen before any of them is dropped, so that a unit does not come back at once.
  const size_t candidates = dropped_.size();
  const bool spares_dropped = candidates + 2 * units_ < all / 2;
  size_t taken = 0;
  for (uint32_t& unit : current_) {
    if (uniform() < kOverlap) continue;
    const uint32_t old = unit;
    if (taken < candidates && uniform() < (kWindowOverlap - kOverlap) / (1 - kOverlap)) {
      std::swap(dropped_[random_() % (candidates - taken)], dropped_[candidates - taken - 1]);
      unit = dropped_[candidates - ++taken].unit;
    } else {
      do {
        unit = anywhere();
      } while (unit == old || Holds(unit, &unit) || (spares_dropped && WasDropped(unit)));
    }
    dropped_.push_back({old, selections_});
  }
  dropped_.erase(dropped_.begin() + static_cast<ptrdiff_t>(candidates - taken),
                 dropped_.begin() + static_cast<ptrdiff_t>(candidates));
  std::sort(current_.begin(), current_.end());
  return current_;
}

}  // namespace winnow::serving
