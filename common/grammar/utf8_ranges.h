#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "common/grammar/grammar.h"

namespace winnow {

// Texts of one to four bytes, byte i from first[i] to last[i].
struct ByteRanges {
  int length = 0;
  std::array<uint8_t, 4> first{};
  std::array<uint8_t, 4> last{};
};

// The UTF-8 texts of a range's characters, which are no surrogates: each is in exactly one of the results.
std::vector<ByteRanges> Utf8Ranges(CodePointRange range);

}  // namespace winnow
