#pragma once
#include <cstdint>

// How codes lie in a packed matrix: in units of 128 output features by 128 inputs, all units of 128 output features one
// behind the other, padded with zeros. A unit is strips of 16 output features, and a strip pieces of 16 bytes, 32 for
// each 32 inputs (int4: 64): piece l is what lane l of a warp needs of them for tensor-core fragments, whose output
// features are l / 4 and 8 more, and whose inputs are 2c and 2c + 1, 2c + 8 and 2c + 9 of each 16, with c = l % 4.
namespace winnow::device {

inline constexpr int kCodeUnit = 128;

// An output feature and an input, counted within a unit.
struct CodePlace {
  int out, in;
};

// Of weight `i` of a unit's word, one of four. A word of e4m3 has weights of one output feature.
constexpr CodePlace F8Place(int word, int i) {
  const int lane = word / 4 % 32, piece = word / 128 % 4;
  return {.out = word / 512 * 16 + word % 2 * 8 + lane / 4,
          .in = piece * 32 + word % 4 / 2 * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2};
}

// Of the nibble `i` of a unit's word, one of eight: those of bits 0 and 16, 4 and 20, ... are pairs of inputs.
constexpr CodePlace I4Place(int word, int i) {
  const int lane = word / 4 % 32, piece = word / 128 % 2;
  return {.out = word / 256 * 16 + i % 2 * 8 + lane / 4,
          .in = piece * 64 + word % 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2 + i / 4};
}

// The bits of a word that e4m3 weight `i` takes. The first two have sign, exponent and mantissa where a bf16 has them;
// the others lie where two shifts bring them there. The first weight of a pair is in the low half of the word.
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
