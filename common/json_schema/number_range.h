#pragma once
#include <cstdint>
#include <optional>

#include "common/grammar/grammar.h"

namespace winnow {

// Bounds of a number, both whole and at most 10^18 from zero; absent: none.
struct NumberBounds {
  std::optional<int64_t> low;
  std::optional<int64_t> high;
  bool low_excluded = false;
  bool high_excluded = false;
};

// The texts, as JSON writes them, of the integers within bounds.
Grammar::ExprId AddIntegerRange(const NumberBounds& bounds, Grammar& grammar);

// The same of all numbers; without exponents.
Grammar::ExprId AddNumberRange(const NumberBounds& bounds, Grammar& grammar);

}  // namespace winnow
