#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "kernels/plugin/device_table.h"
#include "model/weights/device_forms.h"
#include "model/weights/weight_pieces.h"

namespace winnow {

// Which weights are held: a cache rank that predicts queries from the residual needs the q rows, norms and biases
// alone.
enum class WeightParts : uint8_t { kAll, kQueryProjections };

struct DeviceWeightOptions {
  Dtype dtype = Dtype::kBf16;  // of matrices that are not held as stored: kBf16 or kF8, rounded from bf16
  WeightShard shard;
  WeightParts parts = WeightParts::kAll;
};

// What a layer of latent attention has beside qkv, which gives what queries are made of, then latent and turning part
// of the key, of a model with an indexer then its index key and the weights of its heads, and o.
struct DeviceLatentWeights {
  const float* query_norm = nullptr;  // [query_rank]; null where queries have no latent
  // query_rank -> [num_query_heads, nope_dim + rope_dim], then of an indexer [num_heads, head_dim]; without data
  // likewise.
  device::DeviceMatrix query_up;
  const float* key_norm = nullptr;  // [rank]
  const void* key_up = nullptr;     // [num_query_heads, rank, nope_dim] bf16
  const void* value_up = nullptr;   // [num_query_heads, value_dim, rank] bf16
  // [head_dim] of an indexer's keys; null without one.
  const float* index_norm = nullptr;
  const float* index_norm_bias = nullptr;
};

// Outputs of the product that begins a layer, and of the one that makes heads of queries' latents.
int ProjectedFeatures(const ModelConfig& config);
int QueryUpFeatures(const ModelConfig& config);

// Weights of one decoder layer in device memory. Norms, biases and sinks are f32; an absent one is null.
struct DeviceLayerWeights {
  const float* input_norm = nullptr;  // [hidden_size]
  // hidden_size -> q heads, k heads, v heads, or as DeviceLatentWeights says; q heads alone for kQueryProjections.
  device::DeviceMatrix qkv;
  const float* qkv_bias = nullptr;             // [qkv_features]
  const float* q_norm = nullptr;               // [q_norm_features]
  const float* k_norm = nullptr;               // [k_norm_features]
  const float* sinks = nullptr;                // [num_query_heads] scores that take part in the softmax
  DeviceLatentWeights latent;                  // of latent attention alone
  device::DeviceMatrix o;                      // o_features -> hidden_size
  const float* o_bias = nullptr;               // [hidden_size]
  const float* attention_post_norm = nullptr;  // [hidden_size] of what attention gives
  const float* post_attention_norm = nullptr;  // [hidden_size] before the MLP
  const float* mlp_post_norm = nullptr;        // [hidden_size] of what the MLP gives
  // Of a dense MLP; without data in a sparse layer.
  device::DeviceMatrix gate_up;    // hidden_size -> gate, then up
  device::DeviceMatrix down;       // intermediate_size -> hidden_size
  device::ExpertMatrices experts;  // num_experts is 0 in a dense layer

  bool is_sparse() const { return experts.num_experts > 0; }
};

device::GatedActivation ActivationOf(Activation activation);
// The experts of a sparse layer of such a model, without the memory that they lie in; num_experts is 0 of a dense one.
device::ExpertMatrices ExpertShapeOf(const ModelConfig& config);
// Bytes of one of them: gate, up and down.
size_t ExpertBytes(const device::ExpertMatrices& of);

// Bytes of key_up and value_up of one layer; 0 without latent attention.
size_t LatentHeadBytes(const ModelConfig& config);

// What of a config the device path cannot compute: UNIMPLEMENTED names it. Also checks that the shard divides the heads
// and the intermediate size.
absl::Status CheckDeviceModel(const ModelConfig& config, const DeviceWeightOptions& options);

// The shape that one shard computes with: heads and intermediate size divided.
ModelConfig ShardConfig(const ModelConfig& config, WeightShard shard);

// Bytes of one GPU's weights: exactly what loading allocates and keeps. Without a checkpoint all layers are quantised
// as the config says.
size_t DeviceWeightBytes(const device::DeviceTable& table, const ModelConfig& config,
                         const DeviceWeightOptions& options, const Checkpoint* checkpoint = nullptr);

// All weights of a model on one GPU, in one allocation. Immutable once loaded, but for the query bias of synthetic
// ones. While loading, the largest matrix lies in device memory a second time.
class DeviceWeights {
 public:
  // Checks names, shapes, dtypes and finiteness. INVALID_ARGUMENT names file and tensor; RESOURCE_EXHAUSTED says by how
  // much the weights do not fit, before anything is read.
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Load(const device::DeviceTable& table, device::Device& device,
                                                             const Checkpoint& checkpoint, const ModelConfig& config,
                                                             const DeviceWeightOptions& options = {});
  // Random weights of the real shapes, rounded to what config.quantization says: normal values that keep the size of
  // activations, a pure function of the seed, norms of one. With query_bias (even where the config has none) the
  // queries get a bias of zeros that SetQueryBias changes.
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Synthesize(const device::DeviceTable& table,
                                                                   device::Device& device, const ModelConfig& config,
                                                                   uint64_t seed, bool query_bias,
                                                                   const DeviceWeightOptions& options = {});

  const ModelConfig& config() const { return config_; }  // of this shard
  WeightShard shard() const { return options_.shard; }
  Dtype dtype() const { return options_.dtype; }  // of what is not held as stored
  const DeviceLayerWeights& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  const void* embedding() const { return embedding_; }     // [vocab_size, hidden_size] bf16
  const float* final_norm() const { return final_norm_; }  // [hidden_size]
  // hidden_size -> vocab_size, or to the shard's part of it, which begins at lm_head_first().
  const device::DeviceMatrix& lm_head() const { return lm_head_; }
  int lm_head_first() const {
    return lm_head_.out_features == config_.vocab_size ? 0 : options_.shard.index * lm_head_.out_features;
  }
  size_t bytes() const { return memory_->bytes(); }
  // Bytes that one decode step reads of them, whatever the batch: all matrices, without the embedding and without the
  // experts, of which it reads those that its rows are routed to.
  size_t bytes_per_step() const;
  // Of one expert of one layer; 0 where there are none.
  size_t expert_bytes() const;
  const std::vector<std::string>& warnings() const { return warnings_; }  // of the checkpoint, to be logged once

  // Of a synthetic model with query_bias: bias [num_layers][q_features] in host memory. Waits for the copy.
  absl::Status SetQueryBias(device::Device& device, device::Stream stream, const std::vector<float>& bias);

 private:
  DeviceWeights(ModelConfig config, const DeviceWeightOptions& options, const Checkpoint* checkpoint)
      : config_(std::move(config)),
        options_(options),
        forms_(ChooseDeviceForms(checkpoint, config_, options.shard, options.dtype)) {}
  // Cuts `region` (null: counts only) and returns the bytes used. Vectors come first, in vector_bytes.
  size_t Carve(const device::DeviceTable& table, void* region);
  absl::Status Allocate(const device::DeviceTable& table, device::Device& device);
  // The embedding is the lm_head too, in one piece of memory.
  bool ties_tables() const { return config_.tie_word_embeddings && options_.dtype == Dtype::kBf16; }
  friend size_t DeviceWeightBytes(const device::DeviceTable&, const ModelConfig&, const DeviceWeightOptions&,
                                  const Checkpoint*);
  friend class CheckpointUpload;
  friend class WeightSynthesis;

  ModelConfig config_;
  DeviceWeightOptions options_;
  DeviceForms forms_;
  std::unique_ptr<device::DeviceMemory> memory_;
  std::vector<DeviceLayerWeights> layers_;
  void* embedding_ = nullptr;
  const float* final_norm_ = nullptr;
  device::DeviceMatrix lm_head_;
  size_t vector_bytes_ = 0;  // of all norms and biases, at the region's begin
  std::vector<std::string> warnings_;
};

// Where a matrix is row-major bf16 before it is packed: in place, or in memory for the largest of them. That holds the
// codes, scales and zeros of one as well.
absl::StatusOr<std::unique_ptr<device::DeviceMemory>> NewStaging(device::Device& device, const DeviceWeights& weights);
void* StagingOf(const device::DeviceMatrix& matrix, const device::DeviceMemory* staging);

}  // namespace winnow
