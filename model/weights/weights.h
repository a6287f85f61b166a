#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/huge_page_region.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "kernels/kernel_table.h"
#include "model/weights/delta_weights.h"
#include "model/weights/latent_weights.h"
#include "model/weights/weight_memory.h"

namespace winnow {

class MatrixPlan;
class VectorLoader;
struct LayerNames;

// One expert of a sparse layer.
struct ExpertWeights {
  PackedMatrix gate_up;  // hidden_size -> gate, then up
  PackedMatrix down;     // an expert's intermediate size -> hidden_size
  std::span<const float> gate_up_bias = {};
  std::span<const float> down_bias = {};
};

// Weights of one decoder layer. Matrices are packed in the compute dtype or as the checkpoint quantises them; norms and
// biases are f32, and an absent one is an empty span, whose data() is null as the kernels expect.
struct LayerWeights {
  std::span<const float> input_norm;  // [hidden_size]
  PackedMatrix qkv;                   // hidden_size -> q heads, k heads, v heads, or as qkv_features says
  std::span<const float> qkv_bias;    // [qkv_features]
  PackedMatrix query_projection;      // hidden_size -> q heads: a view of qkv where its q rows are whole panels
  std::span<const float> query_bias;  // [q_features]
  std::span<const float> q_norm;      // [head_dim]
  std::span<const float> k_norm;      // [head_dim]
  LatentWeights latent;               // of latent attention alone
  DeltaWeights delta;                 // of linear attention alone, whose qkv ends with what gates the output
  PackedMatrix o;                     // o_features -> hidden_size
  std::span<const float> o_bias;      // [hidden_size]
  std::span<const float> sinks;       // [num_query_heads]
  std::span<const float> attention_post_norm;  // [hidden_size] of what attention gives
  std::span<const float> post_attention_norm;  // [hidden_size] before the MLP
  std::span<const float> mlp_post_norm;        // [hidden_size] of what the MLP gives
  // The dense MLP, or the shared expert of a sparse layer; no data where such a layer has none.
  PackedMatrix gate_up;                 // hidden_size -> gate, then up
  std::span<const float> gate_up_bias;  // [2 * intermediate_size]
  PackedMatrix down;                    // intermediate_size -> hidden_size
  std::span<const float> down_bias;     // [hidden_size]
  // Of a sparse layer alone. Routing is f32 in any compute dtype: tokens close to a tie would go elsewhere.
  PackedMatrix router;                       // hidden_size -> num_experts, f32
  std::span<const float> router_bias;        // [num_experts]
  std::span<const float> router_correction;  // [num_experts]
  PackedMatrix shared_gate;                  // hidden_size -> 1, f32: the logit of the shared expert's share
  std::vector<ExpertWeights> experts;        // [num_experts]
};

// The embedding as stored: [vocab_size, hidden_size] row-major.
struct EmbeddingTable {
  const void* data = nullptr;
  Dtype dtype = Dtype::kBf16;
};

// Adds the matrices of all layers and the lm_head to a plan.
void PlanMatrices(const ModelConfig& config, MatrixPlan& plan, std::span<LayerWeights> layers, PackedMatrix& lm_head);
// Adds a layer's query projection alone, in the form that its stack of q, k and v has.
PackedMatrix PlanQuery(const ModelConfig& config, const LayerNames& names, MatrixPlan& plan);

struct WeightLoadOptions {
  // kBf16 or kF32, of what is not quantised; wider storage is rounded to nearest even.
  Dtype compute_dtype = Dtype::kBf16;
  int num_threads = 2;
};

// All weights of a model, ready for the kernels. Immutable after Load; any number of threads may read it.
class ModelWeights {
 public:
  // Checks names, shapes, dtypes and finiteness of the checkpoint, then packs. INVALID_ARGUMENT names file and tensor.
  // Keeps the checkpoint, whose mapping holds the embedding; the pages of everything else are given back.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                            const ModelConfig& config, const KernelTable& kernels,
                                                            const WeightLoadOptions& options = {});

  const ModelConfig& config() const { return config_; }
  Dtype compute_dtype() const { return compute_dtype_; }
  const LayerWeights& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  // The q rows of a layer's qkv, for predicting its queries from an earlier residual.
  PackedMatrix QueryProjection(int layer) const { return this->layer(layer).query_projection; }
  std::span<const float> final_norm() const { return final_norm_; }  // [hidden_size]
  PackedMatrix lm_head() const { return lm_head_; }                  // hidden_size -> vocab_size
  EmbeddingTable embedding() const { return embedding_; }

  const WeightMemory& memory() const { return memory_; }
  size_t bytes() const { return memory_.total_bytes(); }
  const std::vector<std::string>& warnings() const { return warnings_; }  // of the checkpoint, to be logged once

 private:
  ModelWeights(std::shared_ptr<const Checkpoint> checkpoint, const ModelConfig& config)
      : checkpoint_(std::move(checkpoint)), config_(config) {}
  absl::Status LoadMatrices(const KernelTable& kernels, int num_threads);
  void LoadExpertBiases(const LayerNames& names, VectorLoader& loader, LayerWeights& layer) const;
  absl::Status LoadVectors();
  absl::Status LoadEmbedding();

  std::shared_ptr<const Checkpoint> checkpoint_;
  ModelConfig config_;
  Dtype compute_dtype_ = Dtype::kBf16;
  WeightMemory memory_;
  std::vector<std::string> warnings_;
  HugePageRegion region_;                // all packed matrices
  std::vector<float> vectors_;           // all norms and biases; never resized once views exist
  std::vector<uint8_t> embedding_copy_;  // only if the file holds the embedding unaligned
  std::vector<LayerWeights> layers_;
  std::span<const float> final_norm_;
  PackedMatrix lm_head_;
  EmbeddingTable embedding_;
};

}  // namespace winnow
