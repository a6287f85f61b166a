#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace winnow {

// Observations counted by bucket, in atomics alone, for threads that must not wait. A snapshot that is taken while
// others observe may lack their newest observations. Any thread.
class AtomicHistogram {
 public:
  // `upper_bounds` ascend and outlive it. What lies above the last has a bucket of its own.
  explicit AtomicHistogram(std::span<const double> upper_bounds)
      : upper_bounds_(upper_bounds), buckets_(std::make_unique<std::atomic<uint64_t>[]>(upper_bounds.size() + 1)) {}

  void Observe(double value) {
    size_t bucket = 0;
    while (bucket < upper_bounds_.size() && value > upper_bounds_[bucket]) ++bucket;
    buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  std::span<const double> upper_bounds() const { return upper_bounds_; }
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  // By bucket, not cumulative.
  std::vector<uint64_t> counts() const {
    std::vector<uint64_t> counts(upper_bounds_.size() + 1);
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = buckets_[i].load(std::memory_order_relaxed);
    return counts;
  }

 private:
  const std::span<const double> upper_bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> buckets_;
  std::atomic<double> sum_{0};
};

}  // namespace winnow
