#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/kv_layout.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/scalar.h"

// One head at one position: rotation, and what becomes of it in a row.

namespace winnow {

inline constexpr int kMaxHeadDim = 1024;

// Cosines and sines of one position, attention factor included. A pair of frequency 0 is one that does not turn: it
// stays as it is, without that factor.
struct Angles {
  float cos[kMaxHeadDim / 2];
  float sin[kMaxHeadDim / 2];

  void Fill(uint32_t position, const float* inv_freq, float attention_factor, int head_dim) {
    for (int i = 0; i < head_dim / 2; ++i) {
      if (inv_freq[i] == 0) {
        cos[i] = 1;
        sin[i] = 0;
        continue;
      }
      const float angle = static_cast<float>(position) * inv_freq[i];
      cos[i] = std::cos(angle) * attention_factor;
      sin[i] = std::sin(angle) * attention_factor;
    }
  }
};

inline void RotateHead(const float* __restrict in, const Angles& angles, int head_dim, float* __restrict out) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    out[i] = in[i] * angles.cos[i] - in[i + half] * angles.sin[i];
    out[i + half] = in[i + half] * angles.cos[i] + in[i] * angles.sin[i];
  }
}

inline void StoreKv(const float* in, int head_dim, Dtype dtype, void* row, int offset) {
  if (dtype == Dtype::kF32) {
    float* out = static_cast<float*>(row) + offset;
    for (int d = 0; d < head_dim; ++d) out[d] = in[d];
  } else {
    uint16_t* out = static_cast<uint16_t*>(row) + offset;
    for (int d = 0; d < head_dim; ++d) out[d] = F32ToBf16(in[d]);
  }
}

// A row of a key and a value.
inline void StoreRow(const float* key, const float* value, int head_dim, Dtype dtype, void* row) {
  if (dtype != Dtype::kI8) {
    StoreKv(key, head_dim, dtype, row, 0);
    StoreKv(value, head_dim, dtype, row, head_dim);
    return;
  }
  // The zeros behind quantised elements, fewer than eight, are written over by what comes next.
  auto* const codes = static_cast<int8_t*>(row);
  const float key_scale = QuantizeInt8(key, head_dim, codes);
  const float scales[2] = {key_scale, QuantizeInt8(value, head_dim, codes + head_dim)};
  std::memcpy(codes + RowLayout().scales_offset_bytes(head_dim, dtype), scales, sizeof scales);
}

}  // namespace winnow
