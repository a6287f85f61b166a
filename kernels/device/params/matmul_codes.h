#pragma once
#include <cstdint>

// How e4m3 weights lie in a word of a packed matrix, four of a row: weights 2c and 2c + 1, 2c + 8 and 2c + 9 of a k
// step of 16 are in its word c. That is just what lane c = l % 4 needs for both halves of the step, the first weight of
// a pair in the low half of the word. The first two have sign, exponent and mantissa where a bf16 has them; the others
// lie where two shifts bring them there.
namespace winnow::device {

// Of a row's word, the input that weight `i` belongs to.
constexpr int F8Input(int word, int i) {
  return word / 4 * 16 + word % 4 * 2 + i % 2 + i / 2 * 8;
}

// The bits of a word that weight `i` takes.
constexpr uint32_t F8Bits(int i, uint32_t code) {
  const uint32_t sign = code >> 7 & 1, rest = code & 127;
  return (i < 2 ? sign << 15 | rest << 4 : sign << 11 | (rest >> 4) << 12 | (rest & 15)) << (i % 2 * 16);
}

// Weights 0 and 1, or 2 and 3, of a word: sign, exponent and mantissa in the places of two bf16, which are 2^120 too
// small as the exponents' biases are 7 and 127.
constexpr uint32_t F8FirstPair(uint32_t word) {
  return word & 0x87f087f0u;
}
constexpr uint32_t F8SecondPair(uint32_t word) {
  return (word << 4 & 0x80f080f0u) | (word >> 4 & 0x07000700u);
}

}  // namespace winnow::device
