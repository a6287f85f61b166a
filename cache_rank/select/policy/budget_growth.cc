#include "cache_rank/select/policy/budget_growth.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace winnow {

uint32_t BudgetGrowth::FactorAt(uint32_t position) const {
  for (size_t i = changes_.size(); i-- > 0;) {
    if (changes_[i].from_position <= position) return changes_[i].factor;
  }
  return 1;
}

bool BudgetGrowth::Record(uint32_t position, uint32_t rows_needed) {
  if (ceiling_ == 1) return false;
  if (first_ == end_) first_ = end_ = position;
  WINNOW_CHECK(position == end_);
  ++end_;
  if (rows_needed > 0) corrections_.push_back({position, rows_needed});
  return Advance(position, rows_needed);
}

bool BudgetGrowth::Advance(uint32_t position, uint32_t rows_needed) {
  // Selected before the last change came into effect: says nothing about the present size.
  if (!changes_.empty() && position < changes_.back().from_position) return false;
  const uint32_t factor = FactorAt(position);
  const uint64_t doubling_rows = uint64_t{factor} * budget_tokens_;
  const uint64_t balance = balance_rows_ + rows_needed;
  balance_rows_ = balance > doubling_rows ? balance - doubling_rows : 0;
  quiet_positions_ = rows_needed > 0 ? 0 : quiet_positions_ + 1;
  if (factor < ceiling_ && balance_rows_ > kPatience * doubling_rows) {
    if (std::exchange(halved_, false)) quiet_limit_ = std::min(2 * quiet_limit_, kMaxQuietPositions);
    Resize(position, 2 * factor);
    return true;
  }
  if (factor > 1 && quiet_positions_ >= quiet_limit_) {
    halved_ = true;
    Resize(position, factor / 2);
  }
  return false;
}

void BudgetGrowth::Resize(uint32_t position, uint32_t factor) {
  const uint32_t from = position + 2;
  changes_.push_back({(from + reuse_interval_ - 1) / reuse_interval_ * reuse_interval_, factor});
  balance_rows_ = 0;
  quiet_positions_ = 0;
}

void BudgetGrowth::Truncate(uint32_t position) {
  if (position >= end_) return;
  const std::vector<Correction> corrections = std::move(corrections_);
  const uint32_t first = first_, end = std::max(first_, position);
  *this = BudgetGrowth(budget_tokens_, ceiling_, reuse_interval_);
  auto next = corrections.begin();
  for (uint32_t p = first; p < end; ++p) {
    const bool corrected = next != corrections.end() && next->position == p;
    Record(p, corrected ? (next++)->rows_needed : 0);
  }
}

}  // namespace winnow
