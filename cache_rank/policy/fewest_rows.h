#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace winnow {

// How many rows, in the order of their importance and ties to the lower row, it takes until `held` and what they hold
// reach `target`; those rows are then the first of `rows`, in no order. All of them where they do not suffice, or where
// a sum is not a number. Takes time linear in the number of rows.
//
// importance [row] is not NaN; mass_of(row) >= 0 is what a row holds.
template <class Mass>
size_t FewestRows(std::span<uint32_t> rows, const float* importance, double held, double target, Mass mass_of) {
  const auto more_important = [&](uint32_t a, uint32_t b) {
    return importance[a] != importance[b] ? importance[a] > importance[b] : a < b;
  };
  // By halving: rows [0, low) are the most important ones and not enough, those up to and with `high` are, if there are
  // as many.
  size_t low = 0, high = rows.size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const auto at = [&](size_t i) { return rows.begin() + static_cast<int64_t>(i); };
    std::nth_element(at(low), at(middle), at(high), more_important);
    double sum = 0;
    for (size_t i = low; i <= middle; ++i) sum += mass_of(rows[i]);
    if (held + sum >= target) {
      high = middle;
    } else {
      held += sum;
      low = middle + 1;
    }
  }
  return std::min(low + 1, rows.size());
}

}  // namespace winnow
