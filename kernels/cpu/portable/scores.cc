#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/scalar.h"

namespace winnow::portable {

void KeyScore(const KeyScoreParams& params) {
  WINNOW_CHECK(params.head_dim % 2 == 0 && params.dtype != Dtype::kF16);
  const int num_tiles = (params.num_keys + kBlockTokens - 1) / kBlockTokens;
  for (int t = 0; t < num_tiles; ++t) {
    for (int i = 0; i < params.num_queries; ++i) {
      const float* q = params.queries + static_cast<int64_t>(i) * params.head_dim;
      float acc[kBlockTokens] = {};
      if (params.dtype == Dtype::kF32) {
        const float* keys = static_cast<const float*>(params.tiles[t]);
        for (int d = 0; d < params.head_dim; ++d, keys += kBlockTokens) {
          for (int j = 0; j < kBlockTokens; ++j) acc[j] += q[d] * keys[j];
        }
      } else {
        const uint32_t* keys = static_cast<const uint32_t*>(params.tiles[t]);
        for (int d = 0; d < params.head_dim; d += 2, keys += kBlockTokens) {
          const float even = RoundToBf16(q[d]);
          const float odd = RoundToBf16(q[d + 1]);
          for (int j = 0; j < kBlockTokens; ++j) {
            acc[j] += even * std::bit_cast<float>(keys[j] << 16);
            acc[j] += odd * std::bit_cast<float>(keys[j] & 0xffff0000u);
          }
        }
      }
      float* out = params.scores + i * params.scores_stride + static_cast<int64_t>(t) * kBlockTokens;
      for (int j = 0; j < kBlockTokens; ++j) out[j] = params.scale * acc[j];
    }
  }
}

void ExpRun(float* values, int n, float* max, float* sum) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  *max = kEmpty;
  *sum = 0;
  for (int j = 0; j < n; ++j) *max = std::max(*max, values[j]);
  for (int j = 0; j < n; ++j) {
    values[j] = *max == kEmpty ? 0 : std::exp(values[j] - *max);
    *sum += values[j];
  }
}

void SoftmaxSum(const SoftmaxSumParams& params) {
  const size_t num_runs = SoftmaxRuns(params.num_keys);
  for (int j = params.first; j < params.last; ++j) {
    float sum = 0;
    for (int i = 0; i < params.num_queries; ++i) {
      sum += params.weights[i * params.weights_stride + j] * params.run_scales[i * num_runs + j / kSoftmaxRun];
    }
    params.importance[j] = std::isnan(sum) ? 0 : sum;
  }
}

}  // namespace winnow::portable
