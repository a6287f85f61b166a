#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "kernels/cpu/index_keys.h"
#include "kernels/cpu/key_groups.h"
#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/row_keys.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/score_cap.h"

namespace winnow::portable {

namespace {

// acc[j] = q . key j of the 16 keys whose first line is `lines`.
void DotsF32(const float* q, int head_dim, const char* lines, float* acc) {
  for (int d = 0; d < head_dim; ++d, lines += kStepBytes) {
    const float* keys = reinterpret_cast<const float*>(lines);
    for (int j = 0; j < kKeyGroup; ++j) acc[j] += q[d] * keys[j];
  }
}

void DotsBf16(const float* q, int head_dim, const char* lines, float* acc) {
  for (int d = 0; d < head_dim; d += 2, lines += kStepBytes) {
    const uint32_t* keys = reinterpret_cast<const uint32_t*>(lines);
    for (int j = 0; j < kKeyGroup; ++j) {
      acc[j] += q[d] * std::bit_cast<float>(keys[j] << 16);
      acc[j] += q[d + 1] * std::bit_cast<float>(keys[j] & 0xffff0000u);
    }
  }
}

void DotsInt8(const int8_t* q, int head_dim, const char* lines, int32_t* acc) {
  for (int d = 0; d < head_dim; d += 4, lines += kStepBytes) {
    const int8_t* keys = reinterpret_cast<const int8_t*>(lines);
    for (int j = 0; j < kKeyGroup; ++j) {
      for (int i = 0; i < 4; ++i) acc[j] += q[d + i] * keys[4 * j + i];
    }
  }
}

void DotsInt4(const int8_t* q, int head_dim, const char* lines, int32_t* acc) {
  for (int d = 0; d < head_dim; d += 8, lines += kStepBytes) {
    const uint8_t* keys = reinterpret_cast<const uint8_t*>(lines);
    for (int j = 0; j < kKeyGroup; ++j) {
      for (int i = 0; i < 4; ++i) {
        acc[j] += q[d + i] * ((keys[4 * j + i] & 15) - 8) + q[d + 4 + i] * ((keys[4 * j + i] >> 4) - 8);
      }
    }
  }
}

void ScoreIntegers(const KeyScoreParams& params, const float* query, float* out) {
  int8_t q[kMaxScoredHeadDim];
  const float factor = QuantizeInt8(query, params.head_dim, q) * params.scale;
  const KeyGroups groups(params);
  for (int g = 0; g < groups.count(); ++g, out += kKeyGroup) {
    const char* lines = groups.Lines(g);
    int32_t dots[kKeyGroup] = {};
    (params.dtype == Dtype::kI4 ? DotsInt4 : DotsInt8)(q, params.head_dim, lines, dots);
    const float* scales = reinterpret_cast<const float*>(lines + TileSteps(params) * kStepBytes);
    for (int j = 0; j < kKeyGroup; ++j) out[j] = static_cast<float>(dots[j]) * (factor * scales[j]);
  }
}

void ScoreFloats(const KeyScoreParams& params, const float* query, float* out) {
  float q[kMaxScoredHeadDim];
  const bool bf16 = params.dtype == Dtype::kBf16;
  for (int d = 0; d < params.head_dim; ++d) q[d] = bf16 ? RoundToBf16(query[d]) : query[d];
  const KeyGroups groups(params);
  for (int g = 0; g < groups.count(); ++g, out += kKeyGroup) {
    float acc[kKeyGroup] = {};
    (bf16 ? DotsBf16 : DotsF32)(q, params.head_dim, groups.Lines(g), acc);
    for (int j = 0; j < kKeyGroup; ++j) out[j] = params.scale * acc[j];
  }
}

}  // namespace

void KeyScore(const KeyScoreParams& params) {
  if (ScoreCapped(params, KeyScore)) return;
  if (params.in_rows) return ScoreRowKeys(params, IndexKeys, KeyScore);
  WINNOW_CHECK(params.head_dim % 2 == 0 && params.head_dim <= kMaxScoredHeadDim && params.dtype != Dtype::kF16);
  for (int i = 0; i < params.num_queries; ++i) {
    const float* query = params.queries + static_cast<int64_t>(i) * params.head_dim;
    float* out = params.scores + i * params.scores_stride;
    const bool integers = params.dtype == Dtype::kI8 || params.dtype == Dtype::kI4;
    (integers ? ScoreIntegers : ScoreFloats)(params, query, out);
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
