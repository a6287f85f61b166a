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
  weights->memory_ = ComputeWeightMemory(config, options.compute_dtype, weights->embedding_.dtype);
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

absl::Status ModelWeights::LoadMatrices(const KernelTable& kernels, int num_threads) {
  WINNOW_ASSIGN_OR_RETURN(region_, HugePageRegion::Allocate(memory_.packed_bytes()));
  const int hidden = config_.hidden_size;
  MatrixPlan plan(region_, compute_dtype_);
  for (int i = 0; i < config_.num_layers; ++i) {
    LayerWeights& layer = layers_[static_cast<size_t>(i)];
    const std::string q = LayerTensor(i, "self_attn.q_proj.weight");
    const std::string k = LayerTensor(i, "self_attn.k_proj.weight");
    const std::string v = LayerTensor(i, "self_attn.v_proj.weight");
    layer.qkv = plan.Add({q, k, v}, config_.qkv_features(), hidden);
    if (QueryRowsAreWholePanels(config_)) {
      layer.query_projection = layer.qkv;
      layer.query_projection.out_features = config_.q_features();
    } else {
      layer.query_projection = plan.Add({q}, config_.q_features(), hidden);
    }
    layer.o = plan.Add({LayerTensor(i, "self_attn.o_proj.weight")}, hidden, config_.q_features());
    layer.gate_up = plan.Add({LayerTensor(i, "mlp.gate_proj.weight"), LayerTensor(i, "mlp.up_proj.weight")},
                             2 * config_.intermediate_size, hidden);
    layer.down = plan.Add({LayerTensor(i, "mlp.down_proj.weight")}, hidden, config_.intermediate_size);
  }
  const bool tied = config_.tie_word_embeddings;
  lm_head_ = plan.Add({std::string(tied ? kEmbeddingTensor : kLmHeadTensor)}, config_.vocab_size, hidden, !tied);
  WINNOW_CHECK(plan.full());
  return PackAll(*checkpoint_, kernels, plan.jobs(), num_threads);
}

}  // namespace winnow
