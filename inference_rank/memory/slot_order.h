#pragma once
#include <cstdint>

namespace winnow {

// Where the rows of a sequence's lists lie in their slots.
enum class SlotOrder : uint8_t {
  kParts,       // sinks, ring and pool, whose rows are what was selected: others are elsewhere
  kByPosition,  // all rows, row p at slot p
};

}  // namespace winnow
