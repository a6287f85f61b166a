#include "common/model/quantized/mxfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace winnow {
namespace {

// By the definition of e2m1: sign, exponent with bias 1, one bit of mantissa; subnormals where the exponent is 0.
double E2m1(int code) {
  const int exponent = code >> 1 & 3;
  const int mantissa = code & 1;
  const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(2 + mantissa, exponent - 2);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

TEST(Mxfp4Test, EveryValueWithEveryScale) {
  std::mt19937 random(3);
  for (int scale = 0; scale < 255; ++scale) {
    std::array<uint8_t, 16> block;
    for (int i = 0; i < 16; ++i) block[static_cast<size_t>(i)] = static_cast<uint8_t>(i | random() % 16 << 4);
    const std::array<uint8_t, 1> scales = {static_cast<uint8_t>(scale)};
    std::vector<float> values(kMxfp4Block);
    Mxfp4ToF32(block, scales, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const int code = i % 2 == 0 ? block[i / 2] & 15 : block[i / 2] >> 4;
      EXPECT_EQ(values[i], static_cast<float>(std::ldexp(E2m1(code), scale - 127)))
          << "code " << code << " scale " << scale;
      EXPECT_EQ(std::signbit(values[i]), code >= 8);
    }
  }
}

TEST(Mxfp4Test, BlocksFollowEachOther) {
  std::vector<uint8_t> blocks(3 * 16, 0x22);
  blocks[16] = 0x7a;
  const std::array<uint8_t, 3> scales = {127, 128, 255};
  std::vector<float> values(3 * kMxfp4Block);
  Mxfp4ToF32(blocks, scales, values.data());
  EXPECT_EQ(values[31], 1);
  EXPECT_EQ(values[32], -2);
  EXPECT_EQ(values[33], 12);
  EXPECT_EQ(values[63], 2);
  EXPECT_TRUE(std::isnan(values[64]) && std::isnan(values[95]));
}

}  // namespace
}  // namespace winnow
