#include "model/weights/weight_memory.h"

#include "absl/strings/str_format.h"
#include "kernels/params/matmul.h"
#include "model/weights/matrix_plan.h"
#include "model/weights/weights.h"

namespace winnow {

std::string WeightMemory::ToString() const {
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return absl::StrFormat(
      "weights %.1f MiB: qkv %.1f, query projection %.1f, latent projections %.1f, o %.1f, gate and up %.1f, down "
      "%.1f, experts %.1f, lm_head "
      "%.1f, norms and biases %.1f, embedding (mapped) %.1f",
      mib(total_bytes()), mib(qkv_bytes), mib(query_projection_bytes), mib(latent_bytes), mib(o_bytes),
      mib(gate_up_bytes), mib(down_bytes), mib(expert_bytes), mib(lm_head_bytes), mib(norm_and_bias_bytes),
      mib(embedding_bytes));
}

bool QueryRowsAreWholePanels(const ModelConfig& config) {
  return config.query_projection_features() % kPanel == 0;
}

namespace {

// Norms, biases and sinks of a layer.
size_t VectorFloats(const ModelConfig& config, int layer) {
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto features = static_cast<size_t>(config.mlp_features(layer));
  size_t floats = (config.norms == NormPlacement::kBoth ? 4 : 2) * hidden;
  if (config.is_delta(layer)) {
    const GatedDeltaConfig& delta = *config.delta;
    floats +=
        static_cast<size_t>(delta.conv_width) * delta.conv_features() + 2 * delta.num_value_heads + delta.value_dim;
  }
  const bool attends = !config.is_delta(layer);
  if (config.qk_norm && attends) floats += static_cast<size_t>(config.q_norm_features() + config.k_norm_features());
  if (config.attention_sinks) floats += static_cast<size_t>(config.num_query_heads);
  if (config.qkv_bias && attends) floats += static_cast<size_t>(config.qkv_features());
  if (config.latent) {
    floats += static_cast<size_t>(config.latent->query_rank + config.latent->shape.rank);
    floats += 2 * static_cast<size_t>(config.latent->indexer.head_dim);
  }
  if (config.moe.IsSparse(layer) && config.moe.correction) floats += static_cast<size_t>(config.moe.num_experts);
  if (config.o_bias && attends) floats += hidden;
  if (config.mlp_bias && features > 0) floats += 2 * features + hidden;
  if (config.moe.IsSparse(layer) && config.moe.biases) {
    const auto width = static_cast<size_t>(config.moe.intermediate_size);
    floats += static_cast<size_t>(config.moe.num_experts) * (1 + 2 * width + hidden);
  }
  return floats;
}

// What a sparse layer has beside its shared expert.
size_t ExpertBytes(const LayerWeights& layer) {
  size_t bytes = PlannedBytes(layer.router) + PlannedBytes(layer.shared_gate);
  for (const ExpertWeights& expert : layer.experts) bytes += PlannedBytes(expert.gate_up) + PlannedBytes(expert.down);
  return bytes;
}

// What latent attention has beside the product that begins a layer.
size_t LatentBytes(const LatentWeights& latent) {
  size_t bytes = PlannedBytes(latent.query_up) + PlannedBytes(latent.index_query) + PlannedBytes(latent.index_key) +
                 PlannedBytes(latent.index_weight);
  for (const PackedMatrix& matrix : latent.key_up) bytes += PlannedBytes(matrix);
  for (const PackedMatrix& matrix : latent.value_up) bytes += PlannedBytes(matrix);
  return bytes;
}

}  // namespace

WeightMemory ComputeWeightMemory(const ModelConfig& config, Dtype compute_dtype, Dtype embedding_dtype,
                                 const Checkpoint* checkpoint) {
  const auto num_layers = static_cast<size_t>(config.num_layers);
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto vocab = static_cast<size_t>(config.vocab_size);

  MatrixPlan plan({.checkpoint = checkpoint, .quantization = config.quantization, .compute_dtype = compute_dtype},
                  /*region=*/nullptr);
  std::vector<LayerWeights> layers(num_layers);
  PackedMatrix lm_head;
  PlanMatrices(config, plan, layers, lm_head);
  WeightMemory memory;
  for (const LayerWeights& layer : layers) {
    memory.qkv_bytes += PlannedBytes(layer.qkv) + PlannedBytes(layer.delta.rates);
    if (!QueryRowsAreWholePanels(config) && layer.query_projection.out_features > 0)
      memory.query_projection_bytes += PlannedBytes(layer.query_projection);
    memory.latent_bytes += LatentBytes(layer.latent);
    memory.o_bytes += PlannedBytes(layer.o);
    memory.gate_up_bytes += PlannedBytes(layer.gate_up);
    memory.down_bytes += PlannedBytes(layer.down);
    memory.expert_bytes += ExpertBytes(layer);
  }
  memory.lm_head_bytes = PlannedBytes(lm_head);

  size_t floats = hidden;  // the final norm
  for (int layer = 0; layer < config.num_layers; ++layer) floats += VectorFloats(config, layer);
  memory.norm_and_bias_bytes = floats * sizeof(float);
  memory.embedding_bytes = vocab * hidden * DtypeBytes(embedding_dtype);
  return memory;
}

}  // namespace winnow
