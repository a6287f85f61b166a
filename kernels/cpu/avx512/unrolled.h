#pragma once
#include <utility>

namespace winnow::avx512 {
namespace {

// body(0), ..., body(n - 1). Arrays of vectors that are indexed so become registers before anything else is decided:
// left to itself, the compiler unrolls later and copies every accumulator twice per step around vpdpbusd and vdpbf16ps,
// which overwrite an operand.
template <int n, typename Body>
inline __attribute__((always_inline)) void Unrolled(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(i), ...);
  }
  (std::make_integer_sequence<int, n>());
}

}  // namespace
}  // namespace winnow::avx512
