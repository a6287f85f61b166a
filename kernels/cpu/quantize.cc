#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/params/keys.h"

namespace winnow {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;
// Adding 1.5 * 2^23 rounds to an integer, which the low bits then hold in two's complement.
constexpr float kRoundsToInteger = 0x1.8p23f;

int Padded(int n) {
  return (n + 7) / 8 * 8;
}

// Magnitudes order as their bits do, with what is not finite on top.
int32_t MaxBits(const float* x, int n) {
  int32_t max_bits = 0;
  for (int i = 0; i < n; ++i) max_bits = std::max(max_bits, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  return max_bits;
}

// Nothing to scale by: 0, or NaN where an element is not finite.
bool IsZero(int32_t max_bits, float* scale) {
  *scale = max_bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0;
  return max_bits >= kInfinityBits || std::bit_cast<float>(max_bits) < 0x1p-100f;
}

// y * factor rounded to int4.
inline float RoundToInt4(float y, float factor) {
  const float steps = std::max(-8.0f, std::min(y * factor, 7.0f));
  return (steps + kRoundsToInteger) - kRoundsToInteger;
}

// y.v and v.v of the values v that `factor` gives. Eight chains, so that they become vectors.
struct Int4Fit {
  // y is padded with zeros.
  Int4Fit(const float* y, int n, float factor) : factor(factor) {
    constexpr int kChains = 8;
    float yv[kChains] = {}, vv[kChains] = {};
    for (int d = 0; d < n; d += kChains) {
      for (int i = 0; i < kChains; ++i) {
        const float value = RoundToInt4(y[d + i], factor);
        yv[i] += y[d + i] * value;
        vv[i] += value * value;
      }
    }
    for (int i = 0; i < kChains; ++i) {
      dot += yv[i];
      square += vv[i];
    }
  }
  float scale() const { return dot / square; }
  // The squared error is |y|^2 less this.
  float gain() const { return dot / square * dot; }

  float factor;
  float dot = 0;
  float square = 0;
};

}  // namespace

float QuantizeInt8(const float* x, int n, int8_t* values) {
  const int32_t max_bits = MaxBits(x, n);
  float scale;
  if (IsZero(max_bits, &scale)) {
    std::memset(values, 0, Padded(n));
    return scale;
  }
  const float max = std::bit_cast<float>(max_bits);
  const float inverse = 127 / max;
  for (int i = 0; i < n; ++i)
    values[i] = static_cast<int8_t>(std::bit_cast<int32_t>(x[i] * inverse + kRoundsToInteger) & 0xff);
  std::memset(values + n, 0, Padded(n) - n);
  return max / 127;
}

float QuantizeInt4(const float* x, int n, int8_t* values) {
  const int32_t max_bits = MaxBits(x, n);
  float scale;
  if (IsZero(max_bits, &scale)) {
    std::memset(values, 0, Padded(n));
    return scale;
  }
  float max = std::bit_cast<float>(max_bits);
  // The sign that takes the first element of that magnitude to the side of -8.
  if (*std::find_if(x, x + n, [&](float value) { return std::fabs(value) == max; }) > 0) max = -max;
  const float inverse = 7 / max;
  float y[kMaxScoredHeadDim];  // within [-7, 7], so that nothing below overflows
  for (int i = 0; i < n; ++i) y[i] = x[i] * inverse;
  std::fill(y + n, y + Padded(n), 0.0f);
  Int4Fit best(y, n, 1);
  for (const float factor : {8.0f / 7, 9.0f / 7}) {
    if (const Int4Fit fit(y, n, factor); fit.gain() > best.gain()) best = fit;
  }
  for (int i = 0; i < Padded(n); ++i) values[i] = static_cast<int8_t>(RoundToInt4(y[i], best.factor));
  return best.scale() * (max / 7);
}

}  // namespace winnow
