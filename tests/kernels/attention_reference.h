#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/kernel_test.h"

namespace winnow {

// Attention of one query over rows of [K | V], in doubles. `mass` receives sum_j p_j |v_j| per dimension.
struct AttentionReference {
  std::vector<double> out;
  std::vector<double> mass;
  double lse = 0;
  double score_magnitude = 0;  // max_j sum_d |scale q_d k_jd|
};

inline AttentionReference Attend(const float* q, const std::vector<const float*>& rows, int head_dim, double scale,
                                 double score_cap = 0) {
  AttentionReference ref{std::vector<double>(head_dim), std::vector<double>(head_dim)};
  std::vector<double> scores(rows.size());
  for (size_t j = 0; j < rows.size(); ++j) {
    double magnitude = 0;
    for (int d = 0; d < head_dim; ++d) {
      scores[j] += scale * q[d] * rows[j][d];
      magnitude += std::fabs(scale * q[d] * rows[j][d]);
    }
    if (score_cap > 0) scores[j] = score_cap * std::tanh(scores[j] / score_cap);
    ref.score_magnitude = std::max(ref.score_magnitude, magnitude);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double s : scores) sum += std::exp(s - max);
  for (size_t j = 0; j < rows.size(); ++j) {
    const double p = std::exp(scores[j] - max) / sum;
    for (int d = 0; d < head_dim; ++d) {
      ref.out[d] += p * rows[j][head_dim + d];
      ref.mass[d] += p * std::fabs(rows[j][head_dim + d]);
    }
  }
  ref.lse = max + std::log(sum);
  return ref;
}

// An error e in every score changes each p by a factor of up to exp(2e); q (bf16 KV) and p may be rounded to bf16.
// Scales of int8 rows are some roundings more of scores and weights, and a cap errs by at most 5e-7 of a score.
inline double RelativeTolerance(const AttentionReference& ref, Dtype dtype, int head_dim, size_t num_keys) {
  const double score_error =
      ref.score_magnitude * ((head_dim + 10) * kF32Epsilon + (dtype == Dtype::kBf16 ? kBf16Epsilon : 0));
  return std::expm1(2 * score_error) + (num_keys + 64) * kF32Epsilon + (dtype == Dtype::kBf16 ? kBf16Epsilon : 0);
}

}  // namespace winnow
