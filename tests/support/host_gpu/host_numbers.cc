#include "tests/support/host_gpu/host_numbers.h"

#include <bit>
#include <cmath>

namespace winnow::test {

std::vector<float> ArrayFromBf16(const void* values, size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = Bf16ToF32(static_cast<const uint16_t*>(values)[i]);
  return out;
}

void Store(const std::vector<float>& values, Dtype dtype, void* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::kF32) {
      static_cast<float*>(out)[i] = values[i];
    } else {
      static_cast<uint16_t*>(out)[i] = F32ToBf16(values[i]);
    }
  }
}

uint8_t ToF8(float value) {
  constexpr float kLargest = 448, kSmallestNormal = 0x1p-6f;
  const float size = std::abs(value);
  uint32_t code = 0;  // of NaN, too
  if (size >= kLargest) {
    code = 126;
  } else if (size >= kSmallestNormal) {
    // The exponent is in its place once its bias is e4m3's; half a step is added before the other bits go.
    code = (std::bit_cast<uint32_t>(size) - (120u << 23) + (1u << 19)) >> 20;
  } else if (size > 0) {
    code = static_cast<uint32_t>(size * 512.0 + 0.5);  // exact in double
  }
  return static_cast<uint8_t>(code | (value < 0 ? 128 : 0));
}

}  // namespace winnow::test
