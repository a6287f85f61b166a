#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace winnow {

// How long to wait before each restart of a process that dies again and again: twice as long each time, up to a limit,
// and between half of that and all of it at random, so that processes that died together do not start together.
class RestartDelays {
 public:
  using Milliseconds = std::chrono::milliseconds;

  RestartDelays(Milliseconds first, Milliseconds longest, uint64_t seed)
      : first_(first), longest_(longest), next_(first), random_(seed) {}

  Milliseconds Next() {
    const Milliseconds most = std::min(next_, longest_);
    next_ = most * 2;
    return Milliseconds(std::uniform_int_distribution<int64_t>(most.count() / 2, most.count())(random_));
  }
  // The process has lived long: its next death is the first one again.
  void Reset() { next_ = first_; }

 private:
  const Milliseconds first_, longest_;
  Milliseconds next_;
  std::mt19937_64 random_;
};

}  // namespace winnow
