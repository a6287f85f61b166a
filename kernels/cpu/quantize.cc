#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace winnow {

float QuantizeInt8(const float* x, int n, int8_t* values) {
  // Magnitudes order as their bits do, with what is not finite on top.
  int32_t max_bits = 0;
  for (int i = 0; i < n; ++i) max_bits = std::max(max_bits, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  constexpr int32_t kInfinityBits = 0x7f800000;
  const float max = std::bit_cast<float>(max_bits);
  const int padded = (n + 3) / 4 * 4;
  if (max_bits >= kInfinityBits || max < 0x1p-100f) {
    std::memset(values, 0, padded);
    return max_bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0;
  }
  const float inverse = 127 / max;
  // Adding 1.5 * 2^23 rounds to an integer, which the low bits then hold in two's complement.
  for (int i = 0; i < n; ++i)
    values[i] = static_cast<int8_t>(std::bit_cast<int32_t>(x[i] * inverse + 0x1.8p23f) & 0xff);
  std::memset(values + n, 0, padded - n);
  return max / 127;
}

}  // namespace winnow
