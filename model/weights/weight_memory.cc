#include "model/weights/weight_memory.h"

#include "absl/strings/str_format.h"
#include "kernels/params.h"

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

WeightMemory ComputeWeightMemory(const ModelConfig& config, Dtype compute_dtype, Dtype embedding_dtype) {
  const auto layers = static_cast<size_t>(config.num_layers);
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto intermediate = static_cast<size_t>(config.intermediate_size);
  const auto vocab = static_cast<size_t>(config.vocab_size);
  const auto packed = [compute_dtype](int out, int in) { return PackedBytes(out, in, compute_dtype); };

  WeightMemory memory;
  memory.qkv_bytes = layers * packed(config.qkv_features(), config.hidden_size);
  if (!QueryRowsAreWholePanels(config))
    memory.query_projection_bytes = layers * packed(config.q_features(), config.hidden_size);
  memory.o_bytes = layers * packed(config.hidden_size, config.q_features());
  memory.gate_up_bytes = layers * packed(2 * config.intermediate_size, config.hidden_size);
  memory.down_bytes = layers * packed(config.hidden_size, config.intermediate_size);
  memory.lm_head_bytes = packed(config.vocab_size, config.hidden_size);

  size_t per_layer = 2 * hidden;
  if (config.qk_norm) per_layer += 2 * static_cast<size_t>(config.head_dim);
  if (config.qkv_bias) per_layer += static_cast<size_t>(config.qkv_features());
  if (config.o_bias) per_layer += hidden;
  if (config.mlp_bias) per_layer += 2 * intermediate + hidden;
  memory.norm_and_bias_bytes = (layers * per_layer + hidden) * sizeof(float);
  memory.embedding_bytes = vocab * hidden * DtypeBytes(embedding_dtype);
  return memory;
}

}  // namespace winnow
