#include "model/weights/weights.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
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

absl::Status ModelWeights::LoadVectors() {
  vectors_.reserve(memory_.norm_and_bias_bytes / sizeof(float));
  VectorLoader loader(*checkpoint_, vectors_);
  for (int i = 0; i < config_.num_layers; ++i) {
    LayerWeights& layer = layers_[static_cast<size_t>(i)];
    const auto load = [&loader, i](auto... suffixes) { return loader.Load({LayerTensor(i, suffixes)...}); };
    layer.input_norm = load("input_layernorm.weight");
    layer.post_attention_norm = load("post_attention_layernorm.weight");
    if (config_.qk_norm) {
      layer.q_norm = load("self_attn.q_norm.weight");
      layer.k_norm = load("self_attn.k_norm.weight");
    }
    if (config_.qkv_bias) {
      layer.qkv_bias = load("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias");
    }
    if (config_.o_bias) layer.o_bias = load("self_attn.o_proj.bias");
    if (config_.mlp_bias) {
      layer.gate_up_bias = load("mlp.gate_proj.bias", "mlp.up_proj.bias");
      layer.down_bias = load("mlp.down_proj.bias");
    }
    WINNOW_RETURN_IF_ERROR(loader.status());
    if (config_.qkv_bias) layer.query_bias = layer.qkv_bias.first(static_cast<size_t>(config_.q_features()));
  }
  final_norm_ = loader.Load({std::string(kFinalNormTensor)});
  return loader.status();
}

void PlanMatrices(const ModelConfig& config, MatrixPlan& plan, std::span<LayerWeights> layers, PackedMatrix& lm_head) {
  const int hidden = config.hidden_size;
  for (int i = 0; i < config.num_layers; ++i) {
    LayerWeights& layer = layers[static_cast<size_t>(i)];
    const auto rows = [i](std::string_view name, int outputs) { return MatrixRows{LayerTensor(i, name), outputs}; };
    const MatrixRows q = rows("self_attn.q_proj.weight", config.q_features());
    const MatrixRows k = rows("self_attn.k_proj.weight", config.kv_features());
    const MatrixRows v = rows("self_attn.v_proj.weight", config.kv_features());
    layer.qkv = plan.Add({q, k, v}, hidden);
    if (QueryRowsAreWholePanels(config)) {
      layer.query_projection = layer.qkv;
      layer.query_projection.out_features = config.q_features();
    } else {
      layer.query_projection = plan.Add({q}, hidden, /*release_pages=*/true, {k, v});
    }
    layer.o = plan.Add({rows("self_attn.o_proj.weight", hidden)}, config.q_features());
    layer.gate_up = plan.Add(
        {rows("mlp.gate_proj.weight", config.intermediate_size), rows("mlp.up_proj.weight", config.intermediate_size)},
        hidden);
    layer.down = plan.Add({rows("mlp.down_proj.weight", hidden)}, config.intermediate_size);
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
