#pragma once
#include <array>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// What layers publish, in pinned memory: of each kind two, so that one is filled while the other is in use. Rows have
// the heads of the whole model side by side; where several GPUs share it, each fills in its own.
class PublishStages {
 public:
  struct Decode {
    std::byte* kv_rows = nullptr;    // [kMaxDecodeRows, num_kv_heads] rows
    float* q_pre_rope = nullptr;     // [kMaxDecodeRows, num_query_heads, head_dim]
    float* prediction = nullptr;     // likewise
    float* hidden = nullptr;         // [kMaxDecodeRows, hidden_size]
    float* index_queries = nullptr;  // [kMaxDecodeRows, KvLayout::index_query_floats]
  };
  struct Chunk {
    std::byte* kv_rows = nullptr;  // [num_kv_heads, the chunk's rows] rows
    float* q_pre_rope = nullptr;   // [prefill rows, num_query_heads, head_dim]
  };

  // `config` of the whole model. Any GPU reaches the memory.
  static absl::StatusOr<std::unique_ptr<PublishStages>> Create(device::Device& device, const ModelConfig& config,
                                                               int max_prefill_rows, size_t row_bytes);

  const ModelConfig& config() const { return config_; }
  const Decode& decode(int layer) const { return decode_[layer % 2]; }
  const Chunk& chunk(int turn) const { return chunk_[turn % 2]; }
  // Of a model that brings an indexer; 0 of others.
  size_t index_query_floats() const { return config_.kv_layout(Dtype::kBf16).index_query_floats(); }
  size_t pinned_bytes() const { return memory_->bytes(); }

 private:
  explicit PublishStages(const ModelConfig& config) : config_(config) {}
  size_t Carve(void* region, int max_prefill_rows, size_t row_bytes);

  const ModelConfig config_;
  std::unique_ptr<device::DeviceMemory> memory_;
  std::array<Decode, 2> decode_;
  std::array<Chunk, 2> chunk_;
};

}  // namespace winnow
