#pragma once
#include <utility>

namespace winnow::avx512 {
namespace {

// body(0), ..., body(n - 1), unrolled before the optimiser sees it, so that arrays of vectors indexed by it become
// registers at once; a loop is unrolled too late for that, and its accumulators are copied at every step.
template <int n, typename Body>
inline __attribute__((always_inline)) void Unrolled(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(i), ...);
  }
  (std::make_integer_sequence<int, n>());
}

}  // namespace
}  // namespace winnow::avx512
