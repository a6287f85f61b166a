#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tools/bench/gpu/gpu_context.h"

// What checks of kernels of rows share: random inputs, norms in f64, and how far results may be off.
namespace winnow::elementwise {

inline constexpr double kBf16 = 0x1p-8;      // relative rounding error of bf16
inline constexpr double kF32 = 0x1p-24;      // of f32
inline constexpr double kLibrary = 0x1p-21;  // of f32 expf, sincosf and a division behind them: 8 roundings

inline float Bf16ToF32(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}
inline uint16_t F32ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline std::vector<float> Normal(GpuContext& gpu, size_t count, float stddev = 1) {
  std::normal_distribution<float> normal(0, stddev);
  std::vector<float> values(count);
  for (float& value : values) value = normal(gpu.random);
  return values;
}
inline std::vector<uint16_t> NormalBf16(GpuContext& gpu, size_t count) {
  std::vector<uint16_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = F32ToBf16(std::normal_distribution<float>()(gpu.random));
  return values;
}

// Largest |got - want| / |want|.
inline double RelativeError(const std::vector<uint16_t>& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(Bf16ToF32(got[i]) - want[i]) / std::max(std::abs(want[i]), 1e-30);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}
template <typename T>
double Differing(const std::vector<T>& a, const std::vector<T>& b) {
  double count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;  // NOLINT(bugprone-suspicious-memory-comparison): bits
  }
  return count;
}

inline std::vector<double> RmsNormReference(const std::vector<float>& x, const std::vector<float>& weight,
                                            float epsilon) {
  const size_t width = weight.size();
  std::vector<double> out(x.size());
  for (size_t row = 0; row < x.size() / width; ++row) {
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += double{x[row * width + i]} * x[row * width + i];
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(width) + epsilon);
    for (size_t i = 0; i < width; ++i) out[row * width + i] = x[row * width + i] * inverse * weight[i];
  }
  return out;
}

struct RopeCase {
  int head_dim, num_query_heads, num_kv_heads;
  bool norms, biases;
};

// Inputs of one case, on both sides.
struct RopeRows {
  std::vector<float> qkv, bias, q_norm, k_norm, inv_freq;
  std::vector<uint32_t> positions;
};

inline RopeRows RandomRopeRows(GpuContext& gpu, const RopeCase& c, int num_rows) {
  const int width = (c.num_query_heads + 2 * c.num_kv_heads) * c.head_dim;
  RopeRows rows = {.qkv = Normal(gpu, static_cast<size_t>(num_rows) * width),
                   .bias = Normal(gpu, width),
                   .q_norm = Normal(gpu, c.head_dim),
                   .k_norm = Normal(gpu, c.head_dim),
                   .inv_freq = std::vector<float>(c.head_dim / 2),
                   .positions = std::vector<uint32_t>(num_rows)};
  for (int i = 0; i < c.head_dim / 2; ++i) rows.inv_freq[i] = std::pow(1e6f, -2.0f * i / c.head_dim);
  for (uint32_t& position : rows.positions) position = gpu.random() % 200000;
  return rows;
}

inline device::RopeAppendParams UploadRope(GpuContext& gpu, const RopeCase& c, const RopeRows& rows) {
  return {.qkv = gpu.Upload(rows.qkv),
          .qkv_stride = (c.num_query_heads + 2 * c.num_kv_heads) * c.head_dim,
          .qkv_bias = c.biases ? gpu.Upload(rows.bias) : nullptr,
          .num_rows = static_cast<int>(rows.positions.size()),
          .num_query_heads = c.num_query_heads,
          .num_kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .q_norm_weight = c.norms ? gpu.Upload(rows.q_norm) : nullptr,
          .k_norm_weight = c.norms ? gpu.Upload(rows.k_norm) : nullptr,
          .norm_epsilon = 1e-6f,
          .positions = gpu.Upload(rows.positions),
          .rope_inv_freq = gpu.Upload(rows.inv_freq),
          .rope_attention_factor = 1.25f};
}

}  // namespace winnow::elementwise
