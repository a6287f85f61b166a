#include "kernels/device/params/expert_codes.h"

#include <cmath>

#include "gtest/gtest.h"
#include "kernels/cpu/scalar.h"

namespace winnow::device {
namespace {

TEST(ExpertCodesTest, EveryValueComesBackAsBf16WhateverIsBesideIt) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (const uint32_t others : {0x00000000u, 0xffffffffu, 0x5a5a5a5au}) {
    for (int k = 0; k < 8; ++k) {
      for (uint32_t code = 0; code < 16; ++code) {
        const uint32_t in_order = (others & ~(15u << (4 * k))) | code << (4 * k);
        const uint32_t word = ExpertCodeWord(in_order);
        EXPECT_EQ(ExpertCodeAt(word, k), code);
        const auto bits = static_cast<uint16_t>(ExpertPairBits(word, k / 2) >> (k % 2 * 16));
        const float value = std::ldexp(Bf16ToF32(bits), 126);
        EXPECT_EQ(value, (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7]) << code << " at " << k;
      }
    }
  }
}

}  // namespace
}  // namespace winnow::device
