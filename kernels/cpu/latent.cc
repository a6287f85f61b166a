#include "kernels/cpu/latent.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/rotation.h"
#include "kernels/indexer.h"

namespace winnow {
namespace {

// Turning element i of a stored head, of which pairs are neighbours or half apart.
float Turning(const float* stored, int rope_dim, bool interleaved, int i) {
  const int half = rope_dim / 2;
  return interleaved ? stored[i < half ? 2 * i : 2 * (i - half) + 1] : stored[i];
}

// f64: the sum of an element's squares must not depend on how a compiler orders them.
float Mean(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i];
  return static_cast<float>(sum / n);
}
float MeanSquare(const float* x, int n, float centre) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{x[i] - centre} * double{x[i] - centre};
  return static_cast<float>(sum / n);
}

// The same of a head that begins with its turning part.
void RotateLeadingPart(const float* in, const Angles& angles, int rope_dim, bool interleaved, float* out) {
  for (int i = 0; i < rope_dim / 2; ++i) {
    const float low = Turning(in, rope_dim, interleaved, i),
                high = Turning(in, rope_dim, interleaved, i + rope_dim / 2);
    out[i] = low * angles.cos[i] - high * angles.sin[i];
    out[i + rope_dim / 2] = high * angles.cos[i] + low * angles.sin[i];
  }
}

void CompleteQueries(const LatentQueryParams& p, int row) {
  const LatentShape& shape = p.shape;
  const int stored_dim = p.nope_dim + shape.rope_dim, key_dim = shape.key_dim(), half = shape.rope_dim / 2;
  Angles angles;
  if (p.q != nullptr) angles.Fill(p.positions[row], p.rope_inv_freq, 1, shape.rope_dim);
  for (int h = 0; h < p.num_heads; ++h) {
    const int64_t head = static_cast<int64_t>(row) * p.num_heads + h;
    const float* stored = p.heads + head * stored_dim + p.nope_dim;
    float* pre_rope = p.q_pre_rope + head * key_dim;
    for (int i = 0; i < shape.rope_dim; ++i) {
      pre_rope[shape.rope_place(i)] = Turning(stored, shape.rope_dim, p.interleaved, i);
    }
    if (p.q == nullptr) continue;
    float* q = p.q + head * key_dim;
    std::copy_n(pre_rope, key_dim, q);
    for (int i = 0; i < half; ++i) {
      const int low = shape.rope_place(i), high = shape.rope_place(i + half);
      q[low] = pre_rope[low] * angles.cos[i] - pre_rope[high] * angles.sin[i];
      q[high] = pre_rope[high] * angles.cos[i] + pre_rope[low] * angles.sin[i];
    }
  }
}

void AppendIndexKey(const LatentAppendParams& p, int row, Angles& angles, char* to) {
  const int dim = p.row.index_dim, rope_dim = p.shape.rope_dim;
  const float* in = p.index_keys + static_cast<int64_t>(row) * dim;
  const float mean = Mean(in, dim);
  const float inverse = 1 / std::sqrt(MeanSquare(in, dim, mean) + kIndexNormEpsilon);
  float key[kMaxHeadDim], rotated[kMaxHeadDim];
  for (int d = 0; d < dim; ++d) key[d] = (in[d] - mean) * inverse * p.index_norm_weight[d] + p.index_norm_bias[d];
  std::copy_n(key, dim, rotated);
  angles.Fill(p.positions[row], p.rope_inv_freq, p.rope_attention_factor, rope_dim);
  RotateLeadingPart(key, angles, rope_dim, p.index_interleaved, rotated);
  StoreKv(rotated, dim, p.kv_dtype, to, static_cast<int>(p.row.index_offset(p.shape.key_dim())));
}

void AppendRow(const LatentAppendParams& p, int row) {
  const LatentShape& shape = p.shape;
  const int half = shape.rope_dim / 2;
  const float* latent = p.projected + row * p.stride;
  const float* turning = latent + shape.rank;
  const float inverse = 1 / std::sqrt(MeanSquare(latent, shape.rank, 0) + p.norm_epsilon);
  float key[kMaxHeadDim];
  for (int i = 0; i < shape.rank; ++i) key[shape.latent_place(i)] = latent[i] * inverse * p.norm_weight[i];
  Angles angles;
  angles.Fill(p.positions[row], p.rope_inv_freq, p.rope_attention_factor * p.rope_attention_factor, shape.rope_dim);
  for (int i = 0; i < half; ++i) {
    const float low = Turning(turning, shape.rope_dim, p.interleaved, i),
                high = Turning(turning, shape.rope_dim, p.interleaved, i + half);
    key[shape.rope_place(i)] = low * angles.cos[i] - high * angles.sin[i];
    key[shape.rope_place(i + half)] = high * angles.cos[i] + low * angles.sin[i];
  }
  char* to = static_cast<char*>(p.kv_rows) + static_cast<size_t>(row) * p.row.bytes(shape.key_dim(), p.kv_dtype);
  StoreKv(key, shape.key_dim(), p.kv_dtype, to, 0);
  if (p.index_keys != nullptr) AppendIndexKey(p, row, angles, to);
}

void RotateRow(const RotateLeadingParams& p, int row) {
  Angles angles;
  angles.Fill(p.positions[row], p.rope_inv_freq, p.rope_attention_factor, p.rope_dim);
  float rotated[kMaxHeadDim];
  for (int h = 0; h < p.num_heads; ++h) {
    float* head = p.x + row * p.stride + static_cast<int64_t>(h) * p.head_dim;
    RotateLeadingPart(head, angles, p.rope_dim, p.interleaved, rotated);
    std::copy_n(rotated, p.rope_dim, head);
  }
}

}  // namespace

void LatentQueries(Executor& executor, const LatentQueryParams& params) {
  WINNOW_CHECK(params.shape.key_dim() <= kMaxHeadDim);
  CpuExecutor::From(executor).team.ParallelFor(params.num_rows, [&](int row, int) { CompleteQueries(params, row); });
}

void LatentAppend(Executor& executor, const LatentAppendParams& params) {
  WINNOW_CHECK(params.shape.key_dim() <= kMaxHeadDim && params.row.index_dim <= kMaxHeadDim && params.row.value_is_key);
  WINNOW_CHECK(params.kv_dtype == Dtype::kF32 || params.kv_dtype == Dtype::kBf16);
  CpuExecutor::From(executor).team.ParallelFor(
      params.num_rows, [&](int row, int) { AppendRow(params, row); }, /*grain=*/2);
}

void RotateLeading(Executor& executor, const RotateLeadingParams& params) {
  WINNOW_CHECK(params.rope_dim <= params.head_dim && params.head_dim <= kMaxHeadDim);
  CpuExecutor::From(executor).team.ParallelFor(
      params.num_rows, [&](int row, int) { RotateRow(params, row); }, /*grain=*/2);
}

}  // namespace winnow
