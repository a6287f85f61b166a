#include "inference_rank/backend/cpu_memory.h"

#include <algorithm>

#include "model/transformer.h"
#include "model/weights/weight_memory.h"
#include "model/weights/weights.h"

namespace winnow {
namespace {

uint64_t ActivationBytes(const ModelConfig& config, uint32_t prefill_chunk_tokens) {
  const uint64_t rows = std::max<uint32_t>(prefill_chunk_tokens, kMaxDecodeRows);
  // The residual twice: of decode rows, and of a chunk between two layers.
  const uint64_t row_floats = 2ull * config.hidden_size + config.qkv_features() +
                              (config.attention_gate ? 5ull : 4ull) * config.q_features() +
                              2ull * config.max_dense_mlp_features() +
                              config.num_kv_heads * config.kv_layout(Dtype::kF32).row.elements(config.head_dim);
  return (rows * row_floats + static_cast<uint64_t>(kMaxDecodeRows) * config.vocab_size) * sizeof(float) +
         ExpertMlp::ActivationBytes(config, static_cast<int>(rows)) +
         LatentAttention::ActivationBytes(config, static_cast<int>(rows)) +
         LinearAttention::ActivationBytes(config, static_cast<int>(rows));
}

// The stored embedding is mapped as it is.
Dtype EmbeddingDtype(const Checkpoint* checkpoint) {
  if (checkpoint == nullptr) return Dtype::kBf16;
  const absl::StatusOr<TensorView> embedding = checkpoint->Find("model.embed_tokens.weight");
  return embedding.ok() ? WeightDtype(embedding->dtype).value_or(Dtype::kF32) : Dtype::kBf16;
}

}  // namespace

absl::Status CheckSlotHostMemoryOfCpu(uint64_t slot_host_memory_bytes) {
  if (slot_host_memory_bytes == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--slot-host-memory is for rows that a GPU has no room for, and the rank computes on the CPU: use --slot-memory");
}

MemoryNeeds CpuMemoryNeeds(const BackendOptions& options) {
  const ModelConfig& config = *options.config;
  const Checkpoint* checkpoint = options.checkpoint.get();
  MemoryNeeds needs = options.needs;
  needs.weights_bytes =
      ComputeWeightMemory(config, options.compute_dtype, EmbeddingDtype(checkpoint), checkpoint).total_bytes();
  needs.activation_bytes = ActivationBytes(config, options.prefill_chunk_tokens);
  needs.hidden_size = static_cast<uint32_t>(config.hidden_size);
  needs.state_bytes_per_sequence = config.state_floats() * sizeof(float);
  return needs;
}

}  // namespace winnow
