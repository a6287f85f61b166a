#include "common/model/quantized/mxfp4.h"

#include <array>
#include <cmath>
#include <limits>

#include "common/base/check.h"

namespace winnow {

void Mxfp4ToF32(std::span<const uint8_t> blocks, std::span<const uint8_t> scales, float* out) {
  constexpr size_t kBytes = kMxfp4Block / 2;
  // Sign, two bits of exponent, one of mantissa.
  constexpr std::array<float, 16> kValues = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,  //
                                             -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  WINNOW_CHECK(blocks.size() == scales.size() * kBytes);
  for (size_t block = 0; block < scales.size(); ++block) {
    const float scale =
        scales[block] == kMxfp4Nan ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, scales[block] - 127);
    for (const uint8_t pair : blocks.subspan(block * kBytes, kBytes)) {
      *out++ = kValues[pair & 15] * scale;
      *out++ = kValues[pair >> 4] * scale;
    }
  }
}

}  // namespace winnow
