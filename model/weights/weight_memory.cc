#include "model/weights/weight_memory.h"

#include "absl/strings/str_format.h"
#include "kernels/params.h"
#include "model/weights/matrix_plan.h"
#include "model/weights/weights.h"

namespace winnow {

std::string WeightMemory::ToString() const {
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return absl::StrFormat(
      "weights %.1f MiB: qkv %.1f, query projection %.1f, o %.1f, gate and up %.1f, down %.1f, lm_head %.1f, norms and "
      "biases %.1f, "
      "embedding (mapped) %.1f",
      mib(total_bytes()), mib(qkv_bytes), mib(query_projection_bytes), mib(o_bytes), mib(gate_up_bytes),
      mib(down_bytes), mib(lm_head_bytes), mib(norm_and_bias_bytes), mib(embedding_bytes));
}

bool QueryRowsAreWholePanels(const ModelConfig& config) {
  return config.q_features() % kPanel == 0;
}

WeightMemory ComputeWeightMemory(const ModelConfig& config, Dtype compute_dtype, Dtype embedding_dtype,
                                 const Checkpoint* checkpoint) {
  const auto num_layers = static_cast<size_t>(config.num_layers);
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto intermediate = static_cast<size_t>(config.intermediate_size);
  const auto vocab = static_cast<size_t>(config.vocab_size);

  MatrixPlan plan({.checkpoint = checkpoint, .quantization = config.quantization, .compute_dtype = compute_dtype},
                  /*region=*/nullptr);
  std::vector<LayerWeights> layers(num_layers);
  PackedMatrix lm_head;
  PlanMatrices(config, plan, layers, lm_head);
  WeightMemory memory;
  for (const LayerWeights& layer : layers) {
    memory.qkv_bytes += PlannedBytes(layer.qkv);
    if (!QueryRowsAreWholePanels(config)) memory.query_projection_bytes += PlannedBytes(layer.query_projection);
    memory.o_bytes += PlannedBytes(layer.o);
    memory.gate_up_bytes += PlannedBytes(layer.gate_up);
    memory.down_bytes += PlannedBytes(layer.down);
  }
  memory.lm_head_bytes = PlannedBytes(lm_head);

  size_t per_layer = 2 * hidden;
  if (config.qk_norm) per_layer += 2 * static_cast<size_t>(config.head_dim);
  if (config.qkv_bias) per_layer += static_cast<size_t>(config.qkv_features());
  if (config.o_bias) per_layer += hidden;
  if (config.mlp_bias) per_layer += 2 * intermediate + hidden;
  memory.norm_and_bias_bytes = (num_layers * per_layer + hidden) * sizeof(float);
  memory.embedding_bytes = vocab * hidden * DtypeBytes(embedding_dtype);
  return memory;
}

}  // namespace winnow
