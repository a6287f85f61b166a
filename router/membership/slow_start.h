#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace winnow {

// A rank that has just joined has nothing to do, so that all new sequences would go there at once: into caches that are
// cold and memory that has not been touched, and later their ends come together, too. With slow start it counts as
// busier than it is, by less and less until `window` after it joined (the slow start of nginx and Envoy).
struct SlowStart {
  std::chrono::milliseconds window{0};          // 0: none
  std::chrono::steady_clock::time_point now{};  // of the choice

  // Tenths of its full share of new sequences that a rank gets which joined then, 1 to 10. Ranks that join within a
  // tenth of the window of each other are alike for most of it.
  static constexpr uint32_t kFull = 10;
  uint32_t ShareOf(std::chrono::steady_clock::time_point joined) const {
    if (window.count() == 0 || now - joined >= window) return kFull;
    const auto tenths = kFull * std::max(now - joined, std::chrono::steady_clock::duration(0)) / window;
    return std::max(1u, static_cast<uint32_t>(tenths));
  }
  // How busy `sequences` make it, for comparison: with n sequences and a share of s tenths it takes a new one when
  // others have about (n + 1) * 10 / s - 1.
  uint64_t LoadOf(uint64_t sequences, std::chrono::steady_clock::time_point joined) const {
    constexpr uint64_t kMultipleOfAllShares = 2520;
    return (sequences + 1) * (kMultipleOfAllShares / ShareOf(joined));
  }
};

}  // namespace winnow
