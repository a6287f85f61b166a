#pragma once
#include <cstdint>

namespace winnow::cuda {

// How experts in MXFP4 lie on a device. Blocks of 32 inputs take 16 bytes, four words of eight e2m1 values each. Values
// 2 j lie in a word's low half and values 2 j + 1 in its high one, with their bits where few operations bring both to
// those of two bf16 (expert_codes.cuh). Scales are exponents of two plus 127, as checkpoints have them.
inline constexpr int kExpertBlock = 32, kExpertBlockBytes = kExpertBlock / 2;
inline constexpr uint8_t kGreatestExpertScale = 160;

// Bits of value j of a half: its sign, two of exponent and one of mantissa, from the highest. The first three are bits
// 15 and 8 to 6, which a bf16 has them in, and those shifted right by 3 and by 6; the fourth takes what is left.
inline constexpr int kExpertCodeBits[4][4] = {{15, 8, 7, 6}, {12, 5, 4, 3}, {9, 2, 1, 0}, {14, 13, 11, 10}};

// The word of eight values that are stored in order, the first in the lowest four bits.
constexpr uint32_t ExpertCodeWord(uint32_t in_order) {
  uint32_t word = 0;
  for (int k = 0; k < 8; ++k) {
    for (int bit = 0; bit < 4; ++bit) {
      word |= (in_order >> (4 * k + 3 - bit) & 1u) << (k % 2 * 16 + kExpertCodeBits[k / 2][bit]);
    }
  }
  return word;
}

// The code of value k of a word.
constexpr uint32_t ExpertCodeAt(uint32_t word, int k) {
  uint32_t code = 0;
  for (int bit = 0; bit < 4; ++bit) code = code << 1 | (word >> (k % 2 * 16 + kExpertCodeBits[k / 2][bit]) & 1u);
  return code;
}
static_assert(ExpertCodeAt(ExpertCodeWord(0x76543210u), 5) == 5 && ExpertCodeWord(0xffffffffu) == 0xffffffffu);

}  // namespace winnow::cuda
