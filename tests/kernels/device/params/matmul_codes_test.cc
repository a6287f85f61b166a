#include "kernels/device/params/matmul_codes.h"

#include <cmath>
#include <set>
#include <utility>

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

// The output features and inputs of a lane's fragment of 16 by 16: all combinations.
std::set<std::pair<int, int>> FragmentOf(int lane, int first_out, int first_in) {
  std::set<std::pair<int, int>> places;
  for (const int out : {lane / 4, lane / 4 + 8}) {
    for (const int in : {0, 1, 8, 9}) places.insert({first_out + out, first_in + lane % 4 * 2 + in});
  }
  return places;
}

TEST(MatmulCodesTest, TwoWordsOfF8AreAFragmentOfALane) {
  std::set<std::pair<int, int>> all;
  for (int word = 0; word < kCodeUnit * kCodeUnit / 4; word += 2) {
    std::set<std::pair<int, int>> places;
    for (int i = 0; i < 8; ++i) {
      const CodePlace place = F8Place(word + i / 4, i % 4);
      EXPECT_EQ(place.out % 16 / 8, i / 4);  // a word is of one output feature
      places.insert({place.out, place.in});
    }
    const int strip = word / 512, k16 = word % 512 / 128 * 2 + word % 4 / 2;
    EXPECT_EQ(places, FragmentOf(word / 4 % 32, strip * 16, k16 * 16));
    all.merge(places);
  }
  EXPECT_EQ(all.size(), size_t{kCodeUnit} * kCodeUnit);
}

TEST(MatmulCodesTest, AWordOfI4IsAFragmentOfALane) {
  std::set<std::pair<int, int>> all;
  for (int word = 0; word < kCodeUnit * kCodeUnit / 8; ++word) {
    std::set<std::pair<int, int>> places;
    for (int i = 0; i < 8; ++i) {
      const CodePlace place = I4Place(word, i);
      EXPECT_EQ(place.out % 16 / 8, i % 2);
      EXPECT_EQ(place.in % 2, i / 4);  // pairs of inputs are 16 bits apart
      places.insert({place.out, place.in});
    }
    const int strip = word / 256, k16 = word % 256 / 128 * 4 + word % 4;
    EXPECT_EQ(places, FragmentOf(word / 4 % 32, strip * 16, k16 * 16));
    all.merge(places);
  }
  EXPECT_EQ(all.size(), size_t{kCodeUnit} * kCodeUnit);
}

}  // namespace
}  // namespace winnow::device
