#include "model/latent_attention.h"

#include <algorithm>
#include <cmath>

namespace winnow {

LatentAttention::LatentAttention(const ModelConfig& config, const KernelTable& kernels, Executor& executor,
                                 Dtype kv_dtype, int max_rows)
    : config_(config),
      latent_(*config.latent),
      layout_(config.kv_layout(kv_dtype)),
      kernels_(kernels),
      executor_(executor),
      rope_(ComputeRope(config.rope, latent_.shape.rope_dim)) {
  const size_t rows = max_rows, heads = config.num_query_heads;
  heads_.resize(rows * heads * latent_.query_dim());
  values_.resize(rows * heads * latent_.value_dim);
  index_keys_.resize(rows * latent_.indexer.head_dim);
  index_queries_.resize(rows * layout_.index_query_floats());
}

size_t LatentAttention::ActivationBytes(const ModelConfig& config, int max_rows) {
  if (!config.latent) return 0;
  const LatentConfig& latent = *config.latent;
  const size_t row_floats = static_cast<size_t>(config.num_query_heads) * (latent.query_dim() + latent.value_dim) +
                            latent.indexer.head_dim + config.kv_layout(Dtype::kF32).index_query_floats();
  return static_cast<size_t>(max_rows) * row_floats * sizeof(float);
}

void LatentAttention::MakeQueries(Matmul matmul, const LayerWeights& layer, const float* product, int64_t stride,
                                  int num_rows, const uint32_t* positions, const Projected& out) {
  const int heads = config_.num_query_heads, features = heads * latent_.query_dim();
  if (latent_.query_rank > 0) {
    matmul(executor_, {.x = product,
                       .x_stride = stride,
                       .num_rows = num_rows,
                       .transform = InputTransform::kRmsNorm,
                       .norm_weight = layer.latent.query_norm.data(),
                       .norm_epsilon = kLatentNormEpsilon,
                       .weight = layer.latent.query_up,
                       .y = heads_.data(),
                       .y_stride = features});
  } else {
    for (int row = 0; row < num_rows; ++row) {
      std::copy_n(product + row * stride, features, heads_.data() + static_cast<int64_t>(row) * features);
    }
  }
  for (int head = 0; head < heads; ++head) {
    matmul(executor_, {.x = heads_.data() + static_cast<int64_t>(head) * latent_.query_dim(),
                       .x_stride = features,
                       .num_rows = num_rows,
                       .weight = layer.latent.key_up[static_cast<size_t>(head)],
                       .y = out.q_pre_rope + static_cast<int64_t>(head) * config_.head_dim,
                       .y_stride = config_.q_features()});
  }
  kernels_.latent_queries(executor_, {.heads = heads_.data(),
                                      .num_rows = num_rows,
                                      .num_heads = heads,
                                      .nope_dim = latent_.nope_dim,
                                      .shape = latent_.shape,
                                      .interleaved = latent_.interleaved,
                                      .positions = positions,
                                      .rope_inv_freq = rope_.inv_freq.data(),
                                      .q_pre_rope = out.q_pre_rope,
                                      .q = out.q});
}

void LatentAttention::Project(Matmul matmul, const LayerWeights& layer, const float* x, const float* product,
                              int num_rows, std::span<const uint32_t> positions, const Projected& out) {
  const int64_t stride = config_.qkv_features();
  MakeQueries(matmul, layer, product, stride, num_rows, positions.data(), out);
  const bool indexes = layout_.has_indexer();
  if (indexes) ProjectIndex(matmul, layer, x, product, num_rows, positions);
  kernels_.latent_append(executor_, {.projected = product + config_.query_projection_features(),
                                     .stride = stride,
                                     .num_rows = num_rows,
                                     .norm_weight = layer.latent.key_norm.data(),
                                     .norm_epsilon = kLatentNormEpsilon,
                                     .shape = latent_.shape,
                                     .interleaved = latent_.interleaved,
                                     .positions = positions.data(),
                                     .rope_inv_freq = rope_.inv_freq.data(),
                                     .rope_attention_factor = rope_.attention_factor,
                                     .index_keys = indexes ? index_keys_.data() : nullptr,
                                     .index_norm_weight = layer.latent.index_norm.data(),
                                     .index_norm_bias = layer.latent.index_norm_bias.data(),
                                     .index_interleaved = latent_.indexer.interleaved,
                                     .row = layout_.row,
                                     .kv_dtype = layout_.dtype,
                                     .kv_rows = out.kv_rows});
}

void LatentAttention::ProjectIndex(Matmul matmul, const LayerWeights& layer, const float* x, const float* product,
                                   int num_rows, std::span<const uint32_t> positions) {
  const IndexerConfig& indexer = latent_.indexer;
  const auto stride = static_cast<int64_t>(layout_.index_query_floats());
  const int query_floats = indexer.num_heads * indexer.head_dim;
  matmul(executor_, {.x = product,
                     .x_stride = config_.qkv_features(),
                     .num_rows = num_rows,
                     .transform = InputTransform::kRmsNorm,
                     .norm_weight = layer.latent.query_norm.data(),
                     .norm_epsilon = kLatentNormEpsilon,
                     .weight = layer.latent.index_query,
                     .y = index_queries_.data(),
                     .y_stride = stride});
  kernels_.rotate_leading(executor_, {.x = index_queries_.data(),
                                      .stride = stride,
                                      .num_rows = num_rows,
                                      .num_heads = indexer.num_heads,
                                      .head_dim = indexer.head_dim,
                                      .rope_dim = latent_.shape.rope_dim,
                                      .interleaved = indexer.interleaved,
                                      .positions = positions.data(),
                                      .rope_inv_freq = rope_.inv_freq.data(),
                                      .rope_attention_factor = rope_.attention_factor});
  const auto of_residual = [&](const PackedMatrix& weight, float* y, int64_t y_stride) {
    return MatmulParams{.x = x,
                        .x_stride = config_.hidden_size,
                        .num_rows = num_rows,
                        .transform = InputTransform::kRmsNorm,
                        .norm_weight = layer.input_norm.data(),
                        .norm_epsilon = config_.rms_norm_eps,
                        .weight = weight,
                        .y = y,
                        .y_stride = y_stride};
  };
  matmul(executor_, of_residual(layer.latent.index_key, index_keys_.data(), indexer.head_dim));
  // The weights are f32, with which both products give the same bits, and this one takes any number of rows.
  kernels_.prefill_matmul(executor_,
                          of_residual(layer.latent.index_weight, index_queries_.data() + query_floats, stride));
  // The factors of scores, 1 / sqrt of head_dim and of num_heads, go into the weights.
  const float factor = 1 / std::sqrt(static_cast<float>(query_floats));
  for (int row = 0; row < num_rows; ++row) {
    float* weights = &index_queries_[static_cast<size_t>(row) * stride + query_floats];
    for (int head = 0; head < indexer.num_heads; ++head) weights[head] *= factor;
  }
}

const float* LatentAttention::Values(Matmul matmul, const LayerWeights& layer, const float* attention, int num_rows) {
  const int heads = config_.num_query_heads;
  for (int head = 0; head < heads; ++head) {
    matmul(executor_, {.x = attention + static_cast<int64_t>(head) * config_.head_dim,
                       .x_stride = config_.q_features(),
                       .num_rows = num_rows,
                       .weight = layer.latent.value_up[static_cast<size_t>(head)],
                       .y = values_.data() + static_cast<int64_t>(head) * latent_.value_dim,
                       .y_stride = config_.o_features()});
  }
  return values_.data();
}

}  // namespace winnow
