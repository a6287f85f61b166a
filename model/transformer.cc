#include "model/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"

namespace winnow {
namespace {

// What a product does with its input first: layers may have no norm there.
InputTransform NormOrNone(std::span<const float> norm) {
  return norm.empty() ? InputTransform::kNone : InputTransform::kRmsNorm;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const ModelWeights& weights, const KernelTable& kernels,
                         Executor& executor, Dtype kv_dtype, int max_prefill_tokens, uint32_t max_slots_per_list)
    : config_(config),
      weights_(weights),
      kernels_(kernels),
      executor_(executor),
      kv_dtype_(kv_dtype),
      layout_(config.kv_layout(kv_dtype)),
      rope_(RopeOfHeads(config, config.rope)),
      window_rope_(RopeOfHeads(config, config.window_rope.value_or(config.rope))),
      scale_(AttentionScale(config)),
      max_rows_(std::max(max_prefill_tokens, kMaxDecodeRows)) {
  const size_t rows = max_rows_;
  x_.resize(rows * config.hidden_size);
  qkv_.resize(rows * config.qkv_features());
  q_pre_rope_.resize(rows * config.q_features());
  q_.resize(rows * config.q_features());
  prediction_.resize(static_cast<size_t>(kMaxDecodeRows) * config.q_features());
  kv_rows_.resize(rows * config.num_kv_heads * layout_.row_bytes());
  attention_.resize(rows * config.q_features());
  lse_.resize(static_cast<size_t>(kMaxDecodeRows) * config.num_query_heads);
  merged_.resize(static_cast<size_t>(config.group_size()) * config.head_dim);
  if (config.norms != NormPlacement::kBefore) unnormed_.resize(rows * config.hidden_size);
  gate_up_.resize(rows * 2 * config.max_dense_mlp_features());
  if (config.attention_gate) {
    gates_.resize(rows * config.q_features());
    prediction_gates_.resize(static_cast<size_t>(kMaxDecodeRows) * config.q_features());
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_delta(layer)) kv_layers_.push_back(layer);
  }
  if (config.delta) linear_.emplace(config, kernels, executor, max_rows_);
  if (config.latent) latent_.emplace(config, kernels, executor, kv_dtype, max_rows_);
  if (layout_.has_indexer()) indexed_.emplace(config.latent->indexer, layout_, kernels, executor);
  if (config.moe.num_experts > 0) experts_.emplace(config, kernels, executor, max_rows_);
  logits_.resize(static_cast<size_t>(kMaxDecodeRows) * config.vocab_size);
  positions_.resize(rows);
  // Grown in Decode only when a batch reads more slots than any before; one row of the longest kind to start with.
  attention_scratch_.resize(
      DecodeAttentionScratchBytes(static_cast<size_t>(max_slots_per_list) * config.num_query_heads,
                                  static_cast<size_t>(kMaxDecodeRows) * config.num_query_heads, config.head_dim));
}

void Transformer::Embed(std::span<const uint32_t> token_ids, float* x) {
  const EmbeddingTable table = weights_.embedding();
  kernels_.embed({.table = table.data,
                  .dtype = table.dtype,
                  .hidden_size = config_.hidden_size,
                  .token_ids = token_ids.data(),
                  .num_rows = static_cast<int>(token_ids.size()),
                  .scale = config_.embedding_scale,
                  .out = x});
}

void Transformer::ProjectQkv(Matmul matmul, int l, const float* x, int num_rows, std::span<const uint32_t> positions) {
  const LayerWeights& layer = weights_.layer(l);
  const RopeTable& rope = RopeOf(l);
  matmul(executor_, {.x = x,
                     .x_stride = config_.hidden_size,
                     .num_rows = num_rows,
                     .transform = NormOrNone(layer.input_norm),
                     .norm_weight = layer.input_norm.data(),
                     .norm_epsilon = config_.rms_norm_eps,
                     .weight = layer.qkv,
                     .bias = layer.qkv_bias.data(),
                     .y = qkv_.data(),
                     .y_stride = config_.qkv_features()});
  if (latent_) {
    return latent_->Project(matmul, layer, x, qkv_.data(), num_rows, positions,
                            {.q_pre_rope = q_pre_rope_.data(), .q = q_.data(), .kv_rows = kv_rows_.data()});
  }
  if (config_.attention_gate) TakeGates(qkv_.data(), config_.qkv_features(), num_rows, gates_.data());
  OrderHeads(qkv_.data(), config_.qkv_features(), num_rows, config_.num_query_heads + config_.num_kv_heads);
  kernels_.rope_append(executor_, {.qkv = qkv_.data(),
                                   .qkv_stride = config_.qkv_features(),
                                   .num_rows = num_rows,
                                   .num_query_heads = config_.num_query_heads,
                                   .num_kv_heads = config_.num_kv_heads,
                                   .head_dim = config_.head_dim,
                                   .q_norm_weight = layer.q_norm.data(),
                                   .k_norm_weight = layer.k_norm.data(),
                                   .norm_epsilon = config_.rms_norm_eps,
                                   .norms_projection = config_.qk_norm_projection,
                                   .positions = positions.data(),
                                   .rope_inv_freq = rope.inv_freq.data(),
                                   .rope_attention_factor = rope.attention_factor,
                                   .kv_dtype = kv_dtype_,
                                   .q_pre_rope = q_pre_rope_.data(),
                                   .q = q_.data(),
                                   .kv_rows = kv_rows_.data()});
}

// q̂(p, l) = qnorm(Wq_l norm_l(x)) with x the residual that enters an earlier layer (DESIGN: the depth predictor).
void Transformer::PredictQueries(int layer, int num_rows) {
  const LayerWeights& weights = weights_.layer(layer);
  kernels_.decode_matmul(executor_, {.x = x_.data(),
                                     .x_stride = config_.hidden_size,
                                     .num_rows = num_rows,
                                     .transform = NormOrNone(weights.input_norm),
                                     .norm_weight = weights.input_norm.data(),
                                     .norm_epsilon = config_.rms_norm_eps,
                                     .weight = weights.query_projection,
                                     .bias = weights.query_bias.data(),
                                     .y = latent_ || config_.attention_gate ? qkv_.data() : prediction_.data(),
                                     .y_stride = config_.query_projection_features()});
  if (latent_) return latent_->Queries(kernels_.decode_matmul, weights, qkv_.data(), num_rows, prediction_.data());
  if (config_.attention_gate) {
    const int stride = config_.query_projection_features();
    TakeGates(qkv_.data(), stride, num_rows, prediction_gates_.data());
    for (int row = 0; row < num_rows; ++row) {
      std::copy_n(qkv_.data() + row * static_cast<int64_t>(stride), config_.q_features(),
                  prediction_.data() + row * static_cast<int64_t>(config_.q_features()));
    }
  }
  OrderHeads(prediction_.data(), config_.q_features(), num_rows, config_.num_query_heads);
  kernels_.query_norm({.q = prediction_.data(),
                       .num_rows = num_rows,
                       .num_query_heads = config_.num_query_heads,
                       .head_dim = config_.head_dim,
                       .q_norm_weight = weights.q_norm.data(),
                       .norm_epsilon = config_.rms_norm_eps,
                       .norms_projection = config_.qk_norm_projection});
}

void Transformer::OrderHeads(float* heads, int64_t stride, int num_rows, int num_heads) {
  if (config_.rotary_dim == config_.head_dim) return;
  const LatentShape shape = config_.HeadShape();
  std::vector<float> head(static_cast<size_t>(config_.head_dim));
  for (int row = 0; row < num_rows; ++row) {
    for (int h = 0; h < num_heads; ++h) {
      float* const at = heads + row * stride + static_cast<int64_t>(h) * config_.head_dim;
      std::copy_n(at, config_.head_dim, head.begin());
      for (int i = 0; i < shape.rope_dim; ++i) at[shape.rope_place(i)] = head[static_cast<size_t>(i)];
      for (int i = 0; i < shape.rank; ++i) at[shape.latent_place(i)] = head[shape.rope_dim + i];
    }
  }
}

void Transformer::TakeGates(float* projected, int64_t stride, int num_rows, float* gates) {
  const int dim = config_.head_dim, heads = config_.num_query_heads, rest = static_cast<int>(stride) - 2 * heads * dim;
  for (int row = 0; row < num_rows; ++row) {
    float* const at = projected + row * stride;
    for (int head = 0; head < heads; ++head) {
      std::copy_n(at + (2 * head + 1) * dim, dim, gates + (static_cast<int64_t>(row) * heads + head) * dim);
      std::memmove(at + head * dim, at + 2 * head * dim, static_cast<size_t>(dim) * sizeof(float));
    }
    std::memmove(at + heads * dim, at + 2 * heads * dim, static_cast<size_t>(rest) * sizeof(float));
  }
}

void Transformer::GateAttention(int num_rows) {
  if (!config_.attention_gate) return;
  kernels_.gate_heads(
      executor_, {.x = attention_.data(), .gate = gates_.data(), .width = config_.q_features(), .num_rows = num_rows});
}

void Transformer::LinearLayersBefore(Matmul matmul, int kv_layer, float* x, int num_rows,
                                     std::span<const StatePiece> pieces) {
  const auto k = static_cast<size_t>(kv_layer);
  LinearLayers(matmul, k == 0 ? 0 : kv_layers_[k - 1] + 1, kv_layers_[k], x, num_rows, pieces);
}

void Transformer::LinearLayersBehind(Matmul matmul, float* x, int num_rows, std::span<const StatePiece> pieces) {
  LinearLayers(matmul, kv_layers_.back() + 1, config_.num_layers, x, num_rows, pieces);
}

void Transformer::LinearLayers(Matmul matmul, int first, int end, float* x, int num_rows,
                               std::span<const StatePiece> pieces) {
  for (int layer = first; layer < end; ++layer) {
    const LayerWeights& weights = weights_.layer(layer);
    ProductAndMlp(matmul, weights, x, linear_->Attend(matmul, layer, weights, x, num_rows, pieces), num_rows);
  }
}

// The attention over resident rows comes first in each merge, the partial state last.
void Transformer::MergePartials(std::span<const PartialAttention> partials) {
  const int group = config_.group_size();
  for (const PartialAttention& partial : partials) {
    const size_t head = static_cast<size_t>(partial.row) * config_.num_query_heads + partial.kv_head * group;
    float* attention = attention_.data() + head * config_.head_dim;
    const float* const o[] = {attention, partial.o};
    const float* const lse[] = {lse_.data() + head, partial.lse};
    kernels_.merge_states(
        {.o = o, .lse = lse, .num_states = 2, .num_rows = group, .head_dim = config_.head_dim, .out = merged_.data()});
    std::copy(merged_.begin(), merged_.end(), attention);
  }
}

void Transformer::AddProduct(Matmul matmul, const MatmulParams& product, std::span<const float> norm, float* x) {
  MatmulParams params = product;
  params.accumulate = norm.empty();
  params.y = norm.empty() ? x : unnormed_.data();
  params.y_stride = config_.hidden_size;
  matmul(executor_, params);
  if (norm.empty()) return;
  kernels_.add_normed(executor_, {.x = unnormed_.data(),
                                  .num_rows = params.num_rows,
                                  .width = config_.hidden_size,
                                  .norm_weight = norm.data(),
                                  .norm_epsilon = config_.rms_norm_eps,
                                  .y = x});
}

void Transformer::OutputAndMlp(Matmul matmul, const LayerWeights& layer, float* x, const float* attention,
                               int num_rows) {
  ProductAndMlp(matmul, layer, x, latent_ ? latent_->Values(matmul, layer, attention, num_rows) : attention, num_rows);
}

void Transformer::ProductAndMlp(Matmul matmul, const LayerWeights& layer, float* x, const float* attended,
                                int num_rows) {
  AddProduct(matmul,
             {.x = attended,
              .x_stride = layer.o.in_features,
              .num_rows = num_rows,
              .weight = layer.o,
              .bias = layer.o_bias.data()},
             layer.attention_post_norm, x);
  if (layer.experts.empty()) return DenseMlp(matmul, layer, x, num_rows);
  experts_->Run(matmul, layer, x, num_rows);
}

void Transformer::DenseMlp(Matmul matmul, const LayerWeights& layer, float* x, int num_rows) {
  matmul(executor_, {.x = x,
                     .x_stride = config_.hidden_size,
                     .num_rows = num_rows,
                     .transform = NormOrNone(layer.post_attention_norm),
                     .norm_weight = layer.post_attention_norm.data(),
                     .norm_epsilon = config_.rms_norm_eps,
                     .weight = layer.gate_up,
                     .bias = layer.gate_up_bias.data(),
                     .y = gate_up_.data(),
                     .y_stride = layer.gate_up.out_features});
  AddProduct(matmul,
             {.x = gate_up_.data(),
              .x_stride = layer.gate_up.out_features,
              .num_rows = num_rows,
              .transform = GatedTransform(config_.activation),
              .weight = layer.down,
              .bias = layer.down_bias.data()},
             layer.mlp_post_norm, x);
}

std::span<float> Transformer::Logits(const float* x, int num_rows) {
  kernels_.decode_matmul(executor_, {.x = x,
                                     .x_stride = config_.hidden_size,
                                     .num_rows = num_rows,
                                     .transform = InputTransform::kRmsNorm,
                                     .norm_weight = weights_.final_norm().data(),
                                     .norm_epsilon = config_.rms_norm_eps,
                                     .weight = weights_.lm_head(),
                                     .y = logits_.data(),
                                     .y_stride = config_.vocab_size});
  const std::span<float> logits(logits_.data(), static_cast<size_t>(num_rows) * config_.vocab_size);
  if (const float cap = config_.final_logit_softcap; cap > 0) {
    for (float& logit : logits) logit = cap * std::tanh(logit / cap);
  }
  return logits;
}

std::span<float> Transformer::DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                            DecodeKv& kv) {
  const int num_rows = static_cast<int>(token_ids.size());
  WINNOW_CHECK(num_rows >= 1 && num_rows <= kMaxDecodeRows && positions.size() == token_ids.size());
  const int lookahead = kv.Lookahead();
  const bool waits_for_partials = kv.WaitsForPartials();
  Embed(token_ids, x_.data());
  pieces_.clear();
  for (int row = 0; linear_ && row < num_rows; ++row) {
    pieces_.push_back({.first_row = row, .num_rows = 1, .state = kv.State(row)});
  }
  const int num_kv_layers = static_cast<int>(kv_layers_.size());
  for (int k = 0; k < num_kv_layers; ++k) {
    LinearLayersBefore(kernels_.decode_matmul, k, x_.data(), num_rows, pieces_);
    const int l = kv_layers_[static_cast<size_t>(k)];
    const LayerWeights& layer = weights_.layer(l);
    ProjectQkv(kernels_.decode_matmul, l, x_.data(), num_rows, positions);
    const bool predicts = lookahead > 0 && k + lookahead < num_kv_layers;
    if (predicts) PredictQueries(kv_layers_[k + lookahead], num_rows);
    kv.Publish({.layer = k,
                .kv_rows = kv_rows_.data(),
                .q_pre_rope = q_pre_rope_.data(),
                .prediction = predicts ? prediction_.data() : nullptr,
                .prediction_layer = k + lookahead,
                .hidden = x_.data(),
                .hidden_size = config_.hidden_size,
                .index_queries = layout_.has_indexer() ? latent_->index_queries() : nullptr});

    slot_lists_.Clear();
    kv.AwaitSlots(k, slot_lists_);
    WINNOW_CHECK(slot_lists_.num_heads() == static_cast<size_t>(num_rows) * config_.num_query_heads);
    // A list is in the order of positions, and has those of the window (common/selection/window_layers.h).
    if (config_.window(l) > 0) slot_lists_.KeepNewest(config_.window(l));
    const size_t scratch_bytes =
        DecodeAttentionScratchBytes(slot_lists_.head_slots(), slot_lists_.num_heads(), config_.head_dim);
    if (scratch_bytes > attention_scratch_.size()) attention_scratch_.resize(scratch_bytes * 5 / 4);
    kernels_.decode_attention(executor_, {.q = q_.data(),
                                          .num_rows = num_rows,
                                          .num_query_heads = config_.num_query_heads,
                                          .num_kv_heads = config_.num_kv_heads,
                                          .head_dim = config_.head_dim,
                                          .scale = scale_,
                                          .score_cap = config_.attention_softcap,
                                          .slot_pool = slot_pool_,
                                          .kv_dtype = kv_dtype_,
                                          .row = layout_.row,
                                          .slots = slot_lists_.slots(),
                                          .slot_counts = slot_lists_.counts(),
                                          .list_heads = slot_lists_.heads(),
                                          .out = attention_.data(),
                                          .lse = waits_for_partials ? lse_.data() : nullptr,
                                          .scratch = attention_scratch_.data(),
                                          .sinks = layer.sinks.data()});
    if (waits_for_partials) MergePartials(kv.AwaitPartials(k));
    GateAttention(num_rows);
    OutputAndMlp(kernels_.decode_matmul, layer, x_.data(), attention_.data(), num_rows);
  }
  LinearLayersBehind(kernels_.decode_matmul, x_.data(), num_rows, pieces_);
  return Logits(x_.data(), num_rows);
}

std::span<float> Transformer::Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                                      PrefillKv& kv) {
  const int num_tokens = static_cast<int>(token_ids.size());
  WINNOW_CHECK(num_tokens >= 1 && num_tokens <= max_rows_);
  Embed(token_ids, x_.data());
  for (int k = 0; k < static_cast<int>(kv_layers_.size()); ++k) {
    PrefillLayer(k, first_position, num_tokens, last, x_.data(), kv);
  }
  return last ? Logits(x_.data(), 1) : std::span<float>();
}

PrefillKv::Rows Transformer::ProjectPiece(int k, uint32_t first_position, int num_tokens, bool last,
                                          const float* hidden, PrefillKv& kv) {
  WINNOW_CHECK(num_tokens >= 1 && num_tokens <= max_rows_);
  for (int i = 0; i < num_tokens; ++i) positions_[i] = first_position + i;
  // The prompt's last token alone decides the first token of the answer: it gets the more precise matmul.
  WINNOW_CHECK(!last || num_tokens == 1);
  ProjectQkv(last ? kernels_.decode_matmul : kernels_.prefill_matmul, kv_layers_[static_cast<size_t>(k)], hidden,
             num_tokens, {positions_.data(), static_cast<size_t>(num_tokens)});
  return kv.Publish(k, kv_rows_.data(), q_pre_rope_.data());
}

void Transformer::PrefillLayer(int k, uint32_t first_position, int num_tokens, bool last, float* hidden,
                               PrefillKv& kv) {
  const Matmul matmul = last ? kernels_.decode_matmul : kernels_.prefill_matmul;
  const StatePiece piece{.first_row = 0, .num_rows = num_tokens, .state = linear_ ? kv.State() : nullptr};
  LinearLayersBefore(matmul, k, hidden, num_tokens, {&piece, 1});
  const PrefillKv::Rows rows = ProjectPiece(k, first_position, num_tokens, last, hidden, kv);
  AttendPrompt(k, first_position, num_tokens, last, {.queries = q_.data(), .rows = rows}, hidden);
  if (k + 1 == static_cast<int>(kv_layers_.size())) LinearLayersBehind(matmul, hidden, num_tokens, {&piece, 1});
}

void Transformer::ProjectPrompt(int k, uint32_t first_position, int num_tokens, bool last, const float* hidden,
                                PrefillKv& kv, float* queries) {
  ProjectPiece(k, first_position, num_tokens, last, hidden, kv);
  std::copy_n(q_.begin(), static_cast<size_t>(num_tokens) * config_.q_features(), queries);
}

void Transformer::AttendToPrompt(int l, uint32_t first_position, int num_tokens, const PromptAttention& attention) {
  int everything = num_tokens;  // queries that attend to all rows before them
  if (indexed_) {
    const auto top_k = static_cast<int64_t>(config_.latent->indexer.top_k);
    everything = static_cast<int>(std::clamp<int64_t>(top_k - first_position, 0, num_tokens));
    if (everything < num_tokens) {
      const size_t skipped = static_cast<size_t>(everything) * config_.q_features();
      indexed_->Attend({.queries = attention.queries + skipped,
                        .index_queries = latent_->index_queries() + everything * layout_.index_query_floats(),
                        .num_queries = num_tokens - everything,
                        .first_position = first_position + static_cast<uint32_t>(everything),
                        .rows = attention.rows,
                        .scale = scale_,
                        .out = attention_.data() + skipped});
    }
    if (everything == 0) return;
  }
  kernels_.prefill_attention(executor_, {.q = attention.queries,
                                         .num_queries = everything,
                                         .first_position = first_position,
                                         .num_query_heads = config_.num_query_heads,
                                         .num_kv_heads = config_.num_kv_heads,
                                         .head_dim = config_.head_dim,
                                         .scale = scale_,
                                         .score_cap = config_.attention_softcap,
                                         .kv = attention.rows.kv,
                                         .kv_head_stride = attention.rows.head_stride,
                                         .kv_dtype = kv_dtype_,
                                         .row = layout_.row,
                                         .out = attention_.data(),
                                         .first_key = attention.first_key,
                                         .state = attention.state,
                                         .window = config_.window(l),
                                         .sinks = weights_.layer(l).sinks.data()});
}

void Transformer::AttendPrompt(int k, uint32_t first_position, int num_tokens, bool last,
                               const PromptAttention& attention, float* hidden) {
  const int l = kv_layers_[static_cast<size_t>(k)];
  // Nothing reads the last layer's output but the logits of the last token.
  if (l + 1 == config_.num_layers && !last) return;
  AttendToPrompt(l, first_position, num_tokens, attention);
  GateAttention(num_tokens);
  OutputAndMlp(last ? kernels_.decode_matmul : kernels_.prefill_matmul, weights_.layer(l), hidden, attention_.data(),
               num_tokens);
}

}  // namespace winnow
