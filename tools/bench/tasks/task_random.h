#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace winnow {

// The random choices of the task generators: the same on every machine and library, unlike <random>'s distributions.
// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class TaskRandom {
 public:
  explicit TaskRandom(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound), bound >= 1.
  uint64_t Below(uint64_t bound) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;  // values at and above would favour small results
    uint64_t bits = Bits();
    while (bits >= limit) bits = Bits();
    return bits % bound;
  }
  // Uniform in [low, high], both included.
  int Between(int low, int high) { return low + static_cast<int>(Below(static_cast<uint64_t>(high - low) + 1)); }

  template <class Container>
  const auto& Choice(const Container& from) {
    return from[Below(std::size(from))];
  }
  template <class T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace winnow
