#include "kernels/cpu/rope.h"

#include <cmath>

#include "common/base/check.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/rotation.h"

namespace winnow {
namespace {

// 1 / sqrt(mean(x^2) + eps)
float InverseRms(const float* x, float epsilon, int n) {
  float lanes[16] = {};
  int d = 0;
  for (; d + 16 <= n; d += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] += x[d + i] * x[d + i];
  }
  for (int i = 0; d < n; ++d, ++i) lanes[i] += x[d] * x[d];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return 1 / std::sqrt(sum / static_cast<float>(n) + epsilon);
}

// x * rsqrt(mean(x^2) + eps) * weight; in == out is allowed.
void HeadNorm(const float* in, const float* weight, float epsilon, int head_dim, float* out) {
  const float inverse = InverseRms(in, epsilon, head_dim);
  for (int d = 0; d < head_dim; ++d) out[d] = in[d] * inverse * weight[d];
}

// The norm of the heads of one projection of one row: of each head by itself, or of all of them together.
class ProjectionNorm {
 public:
  ProjectionNorm(const float* heads, int num_heads, int head_dim, const float* weight, float epsilon, bool together)
      : head_dim_(head_dim), weight_(weight), epsilon_(epsilon), together_(together) {
    if (weight != nullptr && together) inverse_ = InverseRms(heads, epsilon, num_heads * head_dim);
  }
  // Head h at `in`, normalised: in `out`, or at `in` where there is no norm.
  const float* Head(const float* in, int h, float* out) const {
    if (weight_ == nullptr) return in;
    if (!together_) {
      HeadNorm(in, weight_, epsilon_, head_dim_, out);
      return out;
    }
    const float* weight = weight_ + static_cast<int64_t>(h) * head_dim_;
    for (int d = 0; d < head_dim_; ++d) out[d] = in[d] * inverse_ * weight[d];
    return out;
  }

 private:
  const int head_dim_;
  const float* const weight_;
  const float epsilon_;
  const bool together_;
  float inverse_ = 0;
};

void RopeAppendRow(const RopeAppendParams& p, int row) {
  const int head_dim = p.head_dim;
  Angles angles;
  angles.Fill(p.positions[row], p.rope_inv_freq, p.rope_attention_factor, head_dim);
  float normed[kMaxHeadDim];
  float rotated[kMaxHeadDim];
  const float* in = p.qkv + row * p.qkv_stride;
  const int64_t first_q = static_cast<int64_t>(row) * p.num_query_heads;
  const ProjectionNorm q_norm(in, p.num_query_heads, head_dim, p.q_norm_weight, p.norm_epsilon, p.norms_projection);
  for (int h = 0; h < p.num_query_heads; ++h, in += head_dim) {
    const float* q = q_norm.Head(in, h, normed);
    if (p.q_pre_rope != nullptr) {
      float* out = p.q_pre_rope + (first_q + h) * head_dim;
      for (int d = 0; d < head_dim; ++d) out[d] = q[d];
    }
    RotateHead(q, angles, head_dim, p.q + (first_q + h) * head_dim);
  }
  const size_t row_bytes = RowLayout().bytes(head_dim, p.kv_dtype);
  char* kv = static_cast<char*>(p.kv_rows) + static_cast<size_t>(row) * p.num_kv_heads * row_bytes;
  const float* v = in + p.num_kv_heads * head_dim;
  const ProjectionNorm k_norm(in, p.num_kv_heads, head_dim, p.k_norm_weight, p.norm_epsilon, p.norms_projection);
  for (int h = 0; h < p.num_kv_heads; ++h, in += head_dim, v += head_dim, kv += row_bytes) {
    const float* k = k_norm.Head(in, h, normed);
    RotateHead(k, angles, head_dim, rotated);
    StoreRow(rotated, v, head_dim, p.kv_dtype, kv);
  }
}

}  // namespace

void RopeAppend(Executor& executor, const RopeAppendParams& params) {
  WINNOW_CHECK(params.head_dim % 2 == 0 && params.head_dim <= kMaxHeadDim);
  WINNOW_CHECK(params.kv_dtype == Dtype::kF32 || params.kv_dtype == Dtype::kBf16 || params.kv_dtype == Dtype::kI8);
  // A row takes about a microsecond: two of them per grain outweigh the claim.
  CpuExecutor::From(executor).team.ParallelFor(
      params.num_rows, [&](int row, int) { RopeAppendRow(params, row); }, /*grain=*/2);
}

void QueryNorm(const QueryNormParams& params) {
  if (params.q_norm_weight == nullptr) return;
  for (int row = 0; row < params.num_rows; ++row) {
    float* q = params.q + static_cast<int64_t>(row) * params.num_query_heads * params.head_dim;
    const ProjectionNorm norm(q, params.num_query_heads, params.head_dim, params.q_norm_weight, params.norm_epsilon,
                              params.norms_projection);
    for (int h = 0; h < params.num_query_heads; ++h, q += params.head_dim) norm.Head(q, h, q);
  }
}

void Rotate(const RotateParams& params) {
  WINNOW_CHECK(params.head_dim % 2 == 0 && params.head_dim <= kMaxHeadDim);
  for (int row = 0; row < params.num_rows; ++row) {
    Angles angles;
    angles.Fill(params.positions[row], params.rope_inv_freq, params.rope_attention_factor, params.head_dim);
    for (int h = 0; h < params.num_heads; ++h) {
      const int64_t offset = (static_cast<int64_t>(row) * params.num_heads + h) * params.head_dim;
      RotateHead(params.q_pre_rope + offset, angles, params.head_dim, params.q + offset);
    }
  }
}

}  // namespace winnow
