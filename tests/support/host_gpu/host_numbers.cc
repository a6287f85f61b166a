#include "tests/support/host_gpu/host_numbers.h"

#include <algorithm>
#include <array>
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
  static const std::array<float, 127> sizes = [] {
    std::array<float, 127> all;
    for (size_t code = 0; code < all.size(); ++code) all[code] = Fp8ToF32(static_cast<uint8_t>(code));
    return all;
  }();
  const float size = std::abs(value);
  auto above = std::lower_bound(sizes.begin(), sizes.end() - 1, size);
  if (above != sizes.begin() && size - *(above - 1) < *above - size) --above;
  return static_cast<uint8_t>((above - sizes.begin()) | (value < 0 ? 128 : 0));
}

}  // namespace winnow::test
