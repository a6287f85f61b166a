#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace winnow {

// Quantiles of the last `kCount` values.
template <size_t kCount>
class RecentQuantile {
 public:
  void Add(double value) {
    values_[next_++ % kCount] = value;
    count_ = std::min(count_ + 1, kCount);
  }
  bool empty() const { return count_ == 0; }
  // The smallest of them that at least `share` of them do not exceed; there must be one.
  double At(double share) const {
    std::array<double, kCount> sorted = values_;
    const double rank = std::ceil(share * static_cast<double>(count_));
    const auto nth = sorted.begin() + static_cast<ptrdiff_t>(std::max(rank, 1.0)) - 1;
    std::nth_element(sorted.begin(), nth, sorted.begin() + count_);
    return *nth;
  }

 private:
  std::array<double, kCount> values_{};
  size_t next_ = 0;
  size_t count_ = 0;
};

}  // namespace winnow
