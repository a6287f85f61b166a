#include "tools/bench/serving/h200_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace winnow::serving {

double H200Costs::MatmulUs(double rows) const {
  static constexpr std::array<std::pair<double, double>, 4> kMeasured = {
      {{1, 6'910}, {8, 6'910}, {32, 7'370}, {64, 9'920}}};
  for (size_t i = 1; i < kMeasured.size(); ++i) {
    const auto [low_rows, low_us] = kMeasured[i - 1];
    const auto [high_rows, high_us] = kMeasured[i];
    if (rows > high_rows) continue;
    return low_us + (high_us - low_us) * std::max(0.0, rows - low_rows) / (high_rows - low_rows);
  }
  return std::max(kMeasured.back().second, rows * prefill_flops_per_token / matmul_flops_per_us);
}

double H200Costs::PrefillUs(double tokens, double context) const {
  const double pairs = tokens * (context + tokens / 2);
  const double length = std::clamp(std::log2(tokens / 512) / 3, 0.0, 1.0);
  const double matmul_rate = std::lerp(short_matmul_flops_per_us, matmul_flops_per_us, length);
  const double attention_rate = std::lerp(short_attention_flops_per_us, attention_flops_per_us, length);
  return step_overhead_us + std::max(MatmulUs(1), tokens * prefill_flops_per_token / matmul_rate) +
         pairs * prefill_attention_flops_per_pair / attention_rate;
}

}  // namespace winnow::serving
