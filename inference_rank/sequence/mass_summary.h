#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace winnow {

// Mean and low percentiles of captured masses in [0, 1], in bins of 1/1000 so that it stays small however long the
// output is.
class MassSummary {
 public:
  static constexpr int kBins = 1000;

  void Add(double mass, uint64_t times = 1) {
    const double clamped = mass < 0 ? 0 : mass > 1 ? 1 : mass;
    // Masses come as f32: 0.95f, a little below 0.95, belongs to the bin that begins there.
    constexpr double kRounding = 1e-4;  // of a bin: above f32's 2^-24 of at most 1000 bins
    bins_[static_cast<size_t>(clamped * kBins + kRounding)] += times;
    sum_ += clamped * static_cast<double>(times);
    count_ += times;
  }
  uint64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  // Lower edge of the bin that holds the given fraction of all masses from below.
  double percentile(double fraction) const {
    uint64_t below = 0;
    const double target = fraction * static_cast<double>(count_);
    for (size_t bin = 0; bin < bins_.size(); ++bin) {
      below += bins_[bin];
      if (static_cast<double>(below) > target) return static_cast<double>(bin) / kBins;
    }
    return 1;
  }
  // Masses in [bin / 1000, (bin + 1) / 1000).
  uint64_t in_bin(int bin) const { return bins_[static_cast<size_t>(bin)]; }

 private:
  std::array<uint64_t, kBins + 1> bins_{};
  double sum_ = 0;
  uint64_t count_ = 0;
};

}  // namespace winnow
