#include "kernels/device/params/matmul_codes.h"

#include <cmath>
#include <set>

#include "common/base/fp8.h"
#include "gtest/gtest.h"
#include "kernels/cpu/scalar.h"

namespace winnow::device {
namespace {

// What the fma behind the shifts makes of half of a pair.
float Value(uint32_t pair, int half) {
  return std::ldexp(Bf16ToF32(static_cast<uint16_t>(pair >> (16 * half))), 120);
}

TEST(F8CodesTest, EveryCodeComesBackAtEveryPlaceWhateverIsBesideIt) {
  for (const uint32_t others : {0x00u, 0xfeu, 0x55u, 0xaau}) {
    for (int place = 0; place < 4; ++place) {
      for (uint32_t code = 0; code < 256; ++code) {
        if ((code & 127) == 127) continue;  // NaN
        uint32_t word = 0;
        for (int i = 0; i < 4; ++i) word |= F8Bits(i, i == place ? code : others);
        const uint32_t pair = place < 2 ? F8FirstPair(word) : F8SecondPair(word);
        EXPECT_EQ(Value(pair, place % 2), Fp8ToF32(static_cast<uint8_t>(code))) << code << " at " << place;
      }
    }
  }
}

TEST(F8CodesTest, CodesTakeBitsOfTheirOwn) {
  EXPECT_EQ(F8Bits(0, 255) ^ F8Bits(1, 255) ^ F8Bits(2, 255) ^ F8Bits(3, 255), 0xffffffffu);
}

TEST(F8CodesTest, AWordHasTheInputsOfALaneOfAnMma) {
  std::set<int> inputs;
  for (int word = 0; word < 8; ++word) {
    const int step = word / 4 * 16, lane = word % 4;
    EXPECT_EQ(F8Input(word, 0), step + 2 * lane);
    EXPECT_EQ(F8Input(word, 1), step + 2 * lane + 1);
    EXPECT_EQ(F8Input(word, 2), step + 2 * lane + 8);
    EXPECT_EQ(F8Input(word, 3), step + 2 * lane + 9);
    for (int i = 0; i < 4; ++i) inputs.insert(F8Input(word, i));
  }
  EXPECT_EQ(inputs.size(), 32u);
}

}  // namespace
}  // namespace winnow::device
