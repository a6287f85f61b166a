#pragma once
#include <cstdint>

namespace winnow::device {

// How experts in MXFP4 lie on a device. Blocks of 32 inputs take 16 bytes, four words of eight e2m1 values each. Values
// 2 j lie in a word's low half and values 2 j + 1 in its high one, with their bits where few operations bring both to
// those of two bf16 (expert_codes.cuh). Scales are exponents of two plus 127, as checkpoints have them.
inline constexpr int kExpertBlock = 32, kExpertBlockBytes = kExpertBlock / 2;
inline constexpr uint8_t kGreatestExpertScale = 160;

// Bits of value j of a half: its sign, two of exponent and one of mantissa, from the highest; 16 and above are bits of
// the other half. The first four are bits 15 and 8 to 6, where a bf16 has them; the next are those rotated to the left
// by 4, the third shifted to the right by 6, and the last take two shifts.
inline constexpr int kExpertCodeBits[4][4] = {{15, 8, 7, 6}, {19, 12, 11, 10}, {9, 2, 1, 0}, {13, 14, 5, 4}};
constexpr int ExpertCodeBit(int k, int bit) {
  return (k % 2 * 16 + kExpertCodeBits[k / 2][bit]) % 32;
}

// The word of eight values that are stored in order, the first in the lowest four bits.
constexpr uint32_t ExpertCodeWord(uint32_t in_order) {
  uint32_t word = 0;
  for (int k = 0; k < 8; ++k) {
    for (int bit = 0; bit < 4; ++bit) {
      word |= (in_order >> (4 * k + 3 - bit) & 1u) << ExpertCodeBit(k, bit);
    }
  }
  return word;
}

// Values 2 j and 2 j + 1 of a word, their bits where two bf16 have them.
constexpr uint32_t ExpertPairBits(uint32_t word, int j) {
  constexpr uint32_t kBits = 0x81c081c0u;
  if (j == 0) return word & kBits;
  if (j == 1) return (word >> 4 | word << 28) & kBits;
  if (j == 2) return word << 6 & kBits;
  return (word << 2 & 0x80c080c0u) | (word >> 6 & 0x01000100u);
}

// The code of value k of a word.
constexpr uint32_t ExpertCodeAt(uint32_t word, int k) {
  uint32_t code = 0;
  for (int bit = 0; bit < 4; ++bit) code = code << 1 | (word >> ExpertCodeBit(k, bit) & 1u);
  return code;
}
static_assert(ExpertCodeAt(ExpertCodeWord(0x76543210u), 5) == 5 && ExpertCodeWord(0xffffffffu) == 0xffffffffu);

}  // namespace winnow::device
