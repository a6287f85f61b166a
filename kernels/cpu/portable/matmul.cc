#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/fp8.h"
#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/scalar.h"

namespace winnow::portable {
namespace {

float RmsNormScale(const float* x, int n, float epsilon) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += x[i] * x[i];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return 1 / std::sqrt(sum / static_cast<float>(n) + epsilon);
}

void Panel(const PanelTask& task) {
  for (int r = 0; r < task.num_rows; ++r) {
    const float* x = static_cast<const float*>(task.x) + r * task.x_stride;
    float* out = task.acc + r * task.acc_stride;
    float acc[kPanel];
    for (int c = 0; c < kPanel; ++c) acc[c] = task.resume ? out[c] : 0;
    if (task.dtype == Dtype::kF32) {
      const float* w = static_cast<const float*>(task.panel);
      for (int k = 0; k < task.num_k; ++k, w += kPanel) {
        for (int c = 0; c < kPanel; ++c) acc[c] += x[k] * w[c];
      }
    } else {
      const uint32_t* w = static_cast<const uint32_t*>(task.panel);  // a pair of k: the even one in the low half
      for (int k = 0; k < task.num_k; k += 2, w += kPanel) {
        for (int c = 0; c < kPanel; ++c) acc[c] += x[k] * std::bit_cast<float>(w[c] << 16);
        for (int c = 0; c < kPanel; ++c) acc[c] += x[k + 1] * std::bit_cast<float>(w[c] & 0xffff0000u);
      }
    }
    for (int c = 0; c < kPanel; ++c) out[c] = acc[c];
  }
}

// The code of input k and output c of a tile.
uint32_t CodeAt(const QuantizedTile& tile, int k, int c) {
  const size_t column = static_cast<size_t>(c);
  const auto row = static_cast<size_t>(k);
  if (tile.dtype == Dtype::kF8) {
    return static_cast<const uint16_t*>(tile.codes)[row / 2 * kPanel + column] >> (row % 2 * 8) & 0xff;
  }
  const auto* words = static_cast<const uint32_t*>(tile.codes);
  if (tile.dtype == Dtype::kI8) return words[row / 4 * kPanel + column] >> (row % 4 * 8) & 0xff;
  return words[row / 8 * kPanel + column] >> (row % 8 * 4) & 0xf;
}

void Unpack(const QuantizedTile& tile, float* weights) {
  for (int k = 0; k < tile.num_k; ++k, weights += kPanel) {
    for (int c = 0; c < kPanel; ++c) {
      const uint32_t code = CodeAt(tile, k, c);
      if (tile.exponents != nullptr) {
        weights[c] = std::ldexp(kE2m1Values[code], tile.exponents[c] - 127);
        continue;
      }
      weights[c] = tile.dtype == Dtype::kF8
                       ? Fp8ToF32(static_cast<uint8_t>(code)) * tile.scales[c]
                       : static_cast<float>(static_cast<int32_t>(code) - tile.zeros[c]) * tile.scales[c];
    }
  }
}

}  // namespace

void TransformRow(const MatmulParams& params, int row, void* out_row) {
  const float* x = params.x + row * params.x_stride;
  float* out = static_cast<float*>(out_row);
  const int n = params.weight.in_features;
  switch (params.transform) {
    case InputTransform::kNone:
      std::memcpy(out, x, n * sizeof(float));
      break;
    case InputTransform::kRmsNorm: {
      const float scale = RmsNormScale(x, n, params.norm_epsilon);
      for (int i = 0; i < n; ++i) out[i] = x[i] * scale * params.norm_weight[i];
      break;
    }
    case InputTransform::kSiluMul:
      for (int i = 0; i < n; ++i) out[i] = x[i] / (1 + std::exp(-x[i])) * x[n + i];
      break;
    case InputTransform::kGeluTanhMul:
      // (1 + tanh(t)) / 2 = 1 / (1 + exp(-2 t))
      for (int i = 0; i < n; ++i) {
        const float t = 0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
        out[i] = x[i] / (1 + std::exp(-2 * t)) * x[n + i];
      }
      break;
    case InputTransform::kClampedSiluMul:
      for (int i = 0; i < n; ++i) {
        const float gate = std::min(x[i], 7.0f), up = std::min(std::max(x[n + i], -7.0f), 7.0f);
        out[i] = gate / (1 + std::exp(-1.702f * gate)) * (up + 1);
      }
      break;
  }
  std::memset(out + n, 0, (PackedInFeatures(n) - n) * sizeof(float));
}

const MatmulMicro kMatmul = {.bf16_input = false, .transform_row = TransformRow, .panel = Panel, .unpack = Unpack};

}  // namespace winnow::portable
