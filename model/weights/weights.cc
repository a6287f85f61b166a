#include "model/weights/weights.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/layer_names.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"
#include "model/weights/matrix_plan.h"
#include "model/weights/vector_loader.h"

namespace winnow {
absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                                 const ModelConfig& config, const KernelTable& kernels,
                                                                 const WeightLoadOptions& options) {
  if (options.compute_dtype != Dtype::kBf16 && options.compute_dtype != Dtype::kF32) {
    return absl::InvalidArgumentError(absl::StrCat("weights cannot be computed with in ",
                                                   DtypeName(options.compute_dtype), "; supported are bf16 and f32"));
  }
  std::unique_ptr<ModelWeights> weights(new ModelWeights(std::move(checkpoint), config));
  weights->compute_dtype_ = options.compute_dtype;
  WINNOW_ASSIGN_OR_RETURN(weights->warnings_, ValidateTensors(*weights->checkpoint_, config));
  weights->layers_.resize(static_cast<size_t>(config.num_layers));
  WINNOW_RETURN_IF_ERROR(weights->LoadEmbedding());
  weights->memory_ =
      ComputeWeightMemory(config, options.compute_dtype, weights->embedding_.dtype, weights->checkpoint_.get());
  WINNOW_RETURN_IF_ERROR(weights->LoadVectors());
  WINNOW_RETURN_IF_ERROR(weights->LoadMatrices(kernels, options.num_threads));
  return weights;
}

absl::Status ModelWeights::LoadEmbedding() {
  WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_->Find(kEmbeddingTensor));
  // A tied embedding is checked where lm_head is packed from it.
  if (!config_.tie_word_embeddings) WINNOW_RETURN_IF_ERROR(CheckFinite(tensor, checkpoint_->FileOf(kEmbeddingTensor)));
  embedding_ = {.data = tensor.bytes.data(), .dtype = *WeightDtype(tensor.dtype)};
  if (reinterpret_cast<uintptr_t>(embedding_.data) % DtypeBytes(embedding_.dtype) != 0) {
    embedding_copy_.assign(tensor.bytes.begin(), tensor.bytes.end());
    embedding_.data = embedding_copy_.data();
  }
  return absl::OkStatus();
}

namespace {

// A head's norm that was just loaded to the end of `vectors`, brought to the order that Transformer brings heads to.
std::span<const float> OrderedAsHeads(const ModelConfig& config, std::span<const float> norm,
                                      std::vector<float>& vectors) {
  if (norm.empty() || config.rotary_dim == config.head_dim) return norm;
  const LatentShape shape = config.HeadShape();
  const std::vector<float> stored(norm.begin(), norm.end());
  float* const to = vectors.data() + (vectors.size() - norm.size());
  for (int i = 0; i < shape.rope_dim; ++i) to[shape.rope_place(i)] = stored[static_cast<size_t>(i)];
  for (int i = 0; i < shape.rank; ++i) to[shape.latent_place(i)] = stored[static_cast<size_t>(shape.rope_dim + i)];
  return norm;
}

void LoadDelta(const LayerNames& names, const GatedDeltaConfig& shape, VectorLoader& loader, DeltaWeights& delta) {
  delta.conv = loader.LoadColumns(names.conv, shape.conv_features());
  delta.log_forgetting = loader.LoadIfNamed(names.log_forgetting);
  delta.rate_bias = loader.LoadIfNamed(names.rate_bias);
  delta.norm = loader.LoadIfNamed(names.delta_norm);  // which adds no one, whatever the others do
}

}  // namespace

absl::Status ModelWeights::LoadVectors() {
  vectors_.reserve(memory_.norm_and_bias_bytes / sizeof(float));
  VectorLoader loader(*checkpoint_, vectors_);
  const float norm_offset = config_.norms_add_one ? 1 : 0;
  for (int i = 0; i < config_.num_layers; ++i) {
    LayerWeights& layer = layers_[static_cast<size_t>(i)];
    const LayerNames names = LayerNamesOf(config_, i);
    layer.input_norm = loader.LoadIfNamed(names.attention_norm, norm_offset);
    layer.attention_post_norm = loader.LoadIfNamed(names.attention_post_norm, norm_offset);
    layer.post_attention_norm = loader.LoadIfNamed(names.mlp_norm, norm_offset);
    layer.mlp_post_norm = loader.LoadIfNamed(names.mlp_post_norm, norm_offset);
    layer.q_norm = OrderedAsHeads(config_, loader.LoadIfNamed(names.q_norm, norm_offset), vectors_);
    layer.k_norm = OrderedAsHeads(config_, loader.LoadIfNamed(names.k_norm, norm_offset), vectors_);
    layer.sinks = loader.LoadIfNamed(names.sinks);
    layer.router_correction = loader.LoadIfNamed(names.router_correction);
    layer.latent.query_norm = loader.LoadIfNamed(names.query_latent_norm, norm_offset);
    layer.latent.key_norm = loader.LoadIfNamed(names.key_latent_norm, norm_offset);
    layer.latent.index_norm = loader.LoadIfNamed(names.index_norm);
    layer.latent.index_norm_bias = loader.LoadIfNamed(names.index_norm_bias);
    const bool attends = !config_.is_delta(i);
    if (!attends) LoadDelta(names, *config_.delta, loader, layer.delta);
    if (config_.qkv_bias && attends) layer.qkv_bias = loader.Load(BiasesOf(names.qkv));
    if (config_.o_bias && attends) layer.o_bias = loader.Load(BiasesOf({names.o}));
    if (config_.mlp_bias && !names.down.empty()) {
      layer.gate_up_bias = loader.Load(BiasesOf(names.gate_up));
      layer.down_bias = loader.Load(BiasesOf({names.down}));
    }
    if (!names.router.empty() && config_.moe.biases) LoadExpertBiases(names, loader, layer);
    WINNOW_RETURN_IF_ERROR(loader.status());
    if (config_.qkv_bias && attends)
      layer.query_bias = layer.qkv_bias.first(static_cast<size_t>(config_.query_projection_features()));
  }
  final_norm_ = loader.LoadIfNamed(std::string(kFinalNormTensor), norm_offset);
  return loader.status();
}

void ModelWeights::LoadExpertBiases(const LayerNames& names, VectorLoader& loader, LayerWeights& layer) const {
  layer.router_bias = loader.Load(BiasesOf({names.router}));
  layer.experts.resize(static_cast<size_t>(config_.moe.num_experts));
  for (int i = 0; i < config_.moe.num_experts; ++i) {
    ExpertWeights& expert = layer.experts[static_cast<size_t>(i)];
    expert.gate_up_bias = loader.LoadRow(names.fused_gate_up + "_bias", i, /*pairs=*/true);
    expert.down_bias = loader.LoadRow(names.fused_down + "_bias", i, /*pairs=*/false);
  }
}

namespace {

// Weights that are stacked, each with its part of the outputs.
std::vector<MatrixRows> Stack(const std::vector<std::string>& projections, int outputs) {
  std::vector<MatrixRows> rows;
  const int parts = static_cast<int>(projections.size());
  for (const std::string& weight : WeightsOf(projections)) rows.push_back({weight, outputs / parts});
  return rows;
}

std::vector<MatrixRows> QkvRows(const ModelConfig& config, const LayerNames& names) {
  const std::vector<std::string> weights = WeightsOf(names.qkv);
  if (config.latent) {
    return {{weights[0], config.query_projection_features()}, {weights[1], config.latent->shape.key_dim()}};
  }
  if (weights.size() == 1) return {{weights[0], config.qkv_features()}};
  return {{weights[0], config.query_projection_features()},
          {weights[1], config.kv_features()},
          {weights[2], config.kv_features()}};
}

void PlanLatent(const ModelConfig& config, const LayerNames& names, MatrixPlan& plan, LatentWeights& out) {
  const LatentConfig& latent = *config.latent;
  const int heads = config.num_query_heads;
  if (!names.query_up.empty()) {
    out.query_up = plan.Add(Stack({names.query_up}, heads * latent.query_dim()), latent.query_rank);
  }
  for (int head = 0; head < heads; ++head) {
    LatentSlice slice{.tensor = names.key_value_up + ".weight",
                      .shape = latent.shape,
                      .num_heads = heads,
                      .head = head,
                      .nope_dim = latent.nope_dim,
                      .value_dim = latent.value_dim,
                      .values = false};
    out.key_up.push_back(plan.AddSlice(slice, latent.shape.key_dim(), latent.nope_dim));
    slice.values = true;
    out.value_up.push_back(plan.AddSlice(slice, latent.value_dim, latent.shape.key_dim()));
  }
  const IndexerConfig& indexer = latent.indexer;
  if (indexer.num_heads == 0) return;
  out.index_query = plan.Add(Stack({names.index_query}, indexer.num_heads * indexer.head_dim), latent.query_rank);
  out.index_key = plan.Add(Stack({names.index_key}, indexer.head_dim), config.hidden_size);
  out.index_weight = plan.AddAs(Dtype::kF32, Stack({names.index_weight}, indexer.num_heads), config.hidden_size);
}

void PlanAttention(const ModelConfig& config, const LayerNames& names, MatrixPlan& plan, LayerWeights& layer) {
  layer.qkv = plan.Add(QkvRows(config, names), config.hidden_size);
  if (QueryRowsAreWholePanels(config)) {
    layer.query_projection = layer.qkv;
    layer.query_projection.out_features = config.query_projection_features();
  } else {
    layer.query_projection = PlanQuery(config, names, plan);
  }
  if (config.latent) PlanLatent(config, names, plan, layer.latent);
  layer.o = plan.Add(Stack({names.o}, config.hidden_size), config.o_features());
}

void PlanDelta(const ModelConfig& config, const LayerNames& names, MatrixPlan& plan, LayerWeights& layer) {
  const GatedDeltaConfig& delta = *config.delta;
  std::vector<MatrixRows> projections = Stack({names.qkv.front()}, delta.projected_features());
  if (!delta.by_key_head) {
    projections = Stack({names.qkv.front()}, delta.conv_features());
    projections.push_back(Stack({names.qkv.back()}, delta.value_features()).front());
  }
  layer.qkv = plan.Add(std::move(projections), config.hidden_size);
  layer.delta.rates = plan.AddAs(Dtype::kF32, Stack(names.rates, 2 * delta.num_value_heads), config.hidden_size);
  layer.o = plan.Add(Stack({names.o}, config.hidden_size), delta.value_features());
}

void PlanExperts(const ModelConfig& config, const LayerNames& names, MatrixPlan& plan, LayerWeights& layer) {
  const int hidden = config.hidden_size, features = config.moe.intermediate_size, count = config.moe.num_experts;
  if (!names.router.empty()) layer.router = plan.AddAs(Dtype::kF32, Stack({names.router}, count), hidden);
  if (!names.shared_gate.empty()) layer.shared_gate = plan.AddAs(Dtype::kF32, Stack({names.shared_gate}, 1), hidden);
  if (!names.fused_down.empty()) layer.experts.resize(static_cast<size_t>(count));  // which may have their biases
  for (int i = 0; !names.fused_down.empty() && i < count; ++i) {
    ExpertWeights& expert = layer.experts[static_cast<size_t>(i)];
    const bool by_output = !config.moe.biases;  // as all but gpt-oss store them
    expert.gate_up =
        plan.AddSlice({.tensor = names.fused_gate_up, .expert = i, .pairs = !by_output, .by_output = by_output},
                      2 * features, hidden);
    expert.down = plan.AddSlice({.tensor = names.fused_down, .expert = i, .by_output = by_output}, hidden, features);
  }
  for (const LayerNames::Expert& expert : names.experts) {
    layer.experts.push_back({.gate_up = plan.Add(Stack(expert.gate_up, 2 * features), hidden),
                             .down = plan.Add(Stack({expert.down}, hidden), features)});
  }
}

}  // namespace

PackedMatrix PlanQuery(const ModelConfig& config, const LayerNames& names, MatrixPlan& plan) {
  std::vector<MatrixRows> rows = QkvRows(config, names);
  const std::vector<MatrixRows> beside(rows.begin() + 1, rows.end());
  rows.resize(1);
  if (beside.empty()) rows.front().taken = config.query_projection_features();
  return plan.Add(std::move(rows), config.hidden_size, /*release_pages=*/true, beside);
}

void PlanMatrices(const ModelConfig& config, MatrixPlan& plan, std::span<LayerWeights> layers, PackedMatrix& lm_head) {
  const int hidden = config.hidden_size;
  for (int i = 0; i < config.num_layers; ++i) {
    LayerWeights& layer = layers[static_cast<size_t>(i)];
    const LayerNames names = LayerNamesOf(config, i);
    if (config.is_delta(i)) {
      PlanDelta(config, names, plan, layer);
    } else {
      PlanAttention(config, names, plan, layer);
    }
    if (!names.down.empty()) {
      const int features = config.mlp_features(i);
      layer.gate_up = plan.Add(Stack(names.gate_up, 2 * features), hidden);
      layer.down = plan.Add(Stack({names.down}, hidden), features);
    }
    PlanExperts(config, names, plan, layer);
  }
  const bool tied = config.tie_word_embeddings;
  lm_head = plan.Add({{std::string(tied ? kEmbeddingTensor : kLmHeadTensor), config.vocab_size}}, hidden, !tied);
}

absl::Status ModelWeights::LoadMatrices(const KernelTable& kernels, int num_threads) {
  WINNOW_ASSIGN_OR_RETURN(region_, HugePageRegion::Allocate(memory_.packed_bytes()));
  MatrixPlan plan(
      {.checkpoint = checkpoint_.get(), .quantization = config_.quantization, .compute_dtype = compute_dtype_},
      region_.data());
  PlanMatrices(config_, plan, layers_, lm_head_);
  WINNOW_RETURN_IF_ERROR(plan.status());
  WINNOW_CHECK(plan.bytes() == region_.bytes());
  return PackAll(*checkpoint_, kernels, plan.jobs(), num_threads);
}

}  // namespace winnow
