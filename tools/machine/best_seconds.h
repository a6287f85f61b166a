#pragma once
#include <algorithm>
#include <chrono>
#include <limits>

namespace winnow {

// Shortest of several runs, as noise only adds time: at least five runs, and at least `at_least_s` in all.
template <typename F>
double BestSeconds(const F& run, double at_least_s = 0.15) {
  double best = std::numeric_limits<double>::infinity();
  double total = 0;
  for (int i = 0; i < 5 || total < at_least_s; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

}  // namespace winnow
