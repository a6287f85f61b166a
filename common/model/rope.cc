#include "common/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/check.h"
#include "common/model/model_config.h"

namespace winnow {
namespace {

// theta^(2i / head_dim)
std::vector<float> PositionFrequencies(double theta, int head_dim) {
  std::vector<float> result(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    result[i] = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return result;
}

std::vector<float> DefaultInvFreq(const RopeConfig& config, int head_dim) {
  std::vector<float> result = PositionFrequencies(config.theta, head_dim);
  for (float& value : result) value = 1.0f / value;
  return result;
}

// Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
std::vector<float> Llama3InvFreq(const RopeConfig& config, int head_dim) {
  std::vector<float> result = DefaultInvFreq(config, head_dim);
  const auto old_context = static_cast<double>(config.original_max_position_embeddings);
  const auto low_wavelength = static_cast<float>(old_context / config.low_freq_factor);
  const auto high_wavelength = static_cast<float>(old_context / config.high_freq_factor);
  const auto factor = static_cast<float>(config.factor);
  for (float& value : result) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / value;
    if (wavelength > low_wavelength) {
      value = value / factor;
    } else if (wavelength >= high_wavelength) {
      const float smooth = (static_cast<float>(old_context) / wavelength - static_cast<float>(config.low_freq_factor)) /
                           static_cast<float>(config.high_freq_factor - config.low_freq_factor);
      value = (1 - smooth) * value / factor + smooth * value;
    }
  }
  return result;
}

// The (fractional) pair index that turns `rotations` times within the original context.
double YarnCorrectionDim(const RopeConfig& config, int head_dim, double rotations) {
  return head_dim *
         std::log(static_cast<double>(config.original_max_position_embeddings) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

std::vector<float> YarnInvFreq(const RopeConfig& config, int head_dim) {
  double low = YarnCorrectionDim(config, head_dim, config.beta_fast);
  double high = YarnCorrectionDim(config, head_dim, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // the ramp's width

  std::vector<float> result = PositionFrequencies(config.theta, head_dim);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float extrapolated = 1.0f / result[i];
    const float interpolated = 1.0f / (static_cast<float>(config.factor) * result[i]);
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float keep = 1 - ramp;
    result[i] = interpolated * (1 - keep) + extrapolated * keep;
  }
  return result;
}

std::vector<float> LongRopeInvFreq(const RopeConfig& config, int head_dim) {
  const std::vector<double>& divisors = config.beyond_original ? config.long_factors : config.short_factors;
  WINNOW_CHECK(divisors.size() == static_cast<size_t>(head_dim / 2));
  std::vector<float> result = PositionFrequencies(config.theta, head_dim);
  for (size_t i = 0; i < result.size(); ++i) result[i] = 1.0f / (static_cast<float>(divisors[i]) * result[i]);
  return result;
}

// It follows from by how much the context can grow, whichever factors hold.
double LongRopeAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor.has_value()) return *config.attention_factor;
  if (config.factor <= 1) return 1;
  return std::sqrt(1 +
                   std::log(config.factor) / std::log(static_cast<double>(config.original_max_position_embeddings)));
}

double YarnAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor.has_value()) return *config.attention_factor;
  if (config.mscale != 0 && config.mscale_all_dim != 0) {
    return YarnMscale(config.factor, config.mscale) / YarnMscale(config.factor, config.mscale_all_dim);
  }
  return YarnMscale(config.factor, 1);
}

}  // namespace

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

RopeTable RopeOfHeads(const ModelConfig& config, const RopeConfig& rope) {
  RopeTable table = ComputeRope(rope, config.rotary_dim);
  table.inv_freq.resize(static_cast<size_t>(config.head_dim) / 2, 0.0f);
  if (config.latent) table.attention_factor = 1;
  return table;
}

float AttentionScale(const ModelConfig& config) {
  return config.attention_scale > 0 ? config.attention_scale : 1 / std::sqrt(static_cast<float>(config.head_dim));
}

RopeTable ComputeRope(const RopeConfig& config, int head_dim) {
  WINNOW_CHECK(head_dim > 0 && head_dim % 2 == 0);
  switch (config.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear: {
      RopeTable table{.inv_freq = DefaultInvFreq(config, head_dim)};
      for (float& value : table.inv_freq) value /= static_cast<float>(config.factor);
      return table;
    }
    case RopeType::kLlama3:
      return {.inv_freq = Llama3InvFreq(config, head_dim)};
    case RopeType::kYarn:
      return {.inv_freq = YarnInvFreq(config, head_dim),
              .attention_factor = static_cast<float>(YarnAttentionFactor(config))};
    case RopeType::kLongRope:
      return {.inv_freq = LongRopeInvFreq(config, head_dim),
              .attention_factor = static_cast<float>(LongRopeAttentionFactor(config))};
  }
  return {.inv_freq = DefaultInvFreq(config, head_dim)};
}

}  // namespace winnow
