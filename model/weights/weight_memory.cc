#include "model/weights/weight_memory.h"

#include "absl/strings/str_format.h"
#include "kernels/params.h"

namespace winnow {

std::string WeightMemory::ToString() const {
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return absl::StrFormat(
      "weights %.1f MiB: qkv %.1f, query projection %.1f, o %.1f, gate and up %.1f, down %.1f, experts %.1f, lm_head "
      "%.1f, norms and biases %.1f, embedding (mapped) %.1f",
      mib(total_bytes()), mib(qkv_bytes), mib(query_projection_bytes), mib(o_bytes), mib(gate_up_bytes),
      mib(down_bytes), mib(expert_bytes), mib(lm_head_bytes), mib(norm_and_bias_bytes), mib(embedding_bytes));
}

bool QueryRowsAreWholePanels(const ModelConfig& config) {
  return config.q_features() % kPanel == 0;
}

namespace {

// Norms, biases and sinks of a layer.
size_t VectorFloats(const ModelConfig& config, int layer) {
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto features = static_cast<size_t>(config.mlp_features(layer));
  size_t floats = (config.norms == NormPlacement::kBoth ? 4 : 2) * hidden;
  if (config.qk_norm) floats += static_cast<size_t>(config.q_norm_features() + config.k_norm_features());
  if (config.attention_sinks) floats += static_cast<size_t>(config.num_query_heads);
  if (config.qkv_bias) floats += static_cast<size_t>(config.qkv_features());
  if (config.o_bias) floats += hidden;
  if (config.mlp_bias && features > 0) floats += 2 * features + hidden;
  if (config.moe.IsSparse(layer) && config.moe.biases) {
    const auto width = static_cast<size_t>(config.moe.intermediate_size);
    floats += static_cast<size_t>(config.moe.num_experts) * (1 + 2 * width + hidden);
  }
  return floats;
}

}  // namespace

WeightMemory ComputeWeightMemory(const ModelConfig& config, Dtype compute_dtype, Dtype embedding_dtype) {
  const auto layers = static_cast<size_t>(config.num_layers);
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto vocab = static_cast<size_t>(config.vocab_size);
  const auto packed = [compute_dtype](int out, int in) { return PackedBytes(out, in, compute_dtype); };

  WeightMemory memory;
  memory.qkv_bytes = layers * packed(config.qkv_features(), config.hidden_size);
  if (!QueryRowsAreWholePanels(config))
    memory.query_projection_bytes = layers * packed(config.q_features(), config.hidden_size);
  memory.o_bytes = layers * packed(config.hidden_size, config.q_features());
  const MoeConfig& moe = config.moe;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const int features = config.mlp_features(layer);
    if (features > 0) {
      memory.gate_up_bytes += packed(2 * features, config.hidden_size);
      memory.down_bytes += packed(config.hidden_size, features);
    }
    if (!moe.IsSparse(layer)) continue;
    memory.expert_bytes +=
        static_cast<size_t>(moe.num_experts) *
        (packed(2 * moe.intermediate_size, config.hidden_size) + packed(config.hidden_size, moe.intermediate_size));
    memory.expert_bytes += PackedBytes(moe.num_experts, config.hidden_size, Dtype::kF32);
    if (features > 0) memory.expert_bytes += PackedBytes(1, config.hidden_size, Dtype::kF32);
  }
  memory.lm_head_bytes = packed(config.vocab_size, config.hidden_size);

  size_t floats = hidden;  // the final norm
  for (int layer = 0; layer < config.num_layers; ++layer) floats += VectorFloats(config, layer);
  memory.norm_and_bias_bytes = floats * sizeof(float);
  memory.embedding_bytes = vocab * hidden * DtypeBytes(embedding_dtype);
  return memory;
}

}  // namespace winnow
