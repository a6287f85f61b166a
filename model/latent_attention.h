#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/rope.h"
#include "kernels/kernel_table.h"
#include "model/weights/weights.h"

namespace winnow {

// The projections of latent attention (LatentConfig), which make queries, rows and outputs such that what lies between
// them, attention and selection, sees one kv head as of any other model. Keys and values of the heads are never
// computed, in prompts neither: each head's query is multiplied with its key projection, and what it has attended to,
// a mean of latents, with its value projection. For a prompt that is some three times the arithmetic of attention over
// heads' own keys, and its rows need not be expanded again for every chunk.
//
// Holds the activations; the rest is borrowed.
class LatentAttention {
 public:
  using Matmul = void (*)(Executor&, const MatmulParams&);

  // `config` must have latent attention.
  LatentAttention(const ModelConfig& config, const KernelTable& kernels, Executor& executor, Dtype kv_dtype,
                  int max_rows);
  // Bytes that the activations of `max_rows` rows take.
  static size_t ActivationBytes(const ModelConfig& config, int max_rows);

  // Queries [num_rows, num_query_heads, head_dim], and rows [num_rows] of kv_dtype, from the layer's first product
  // [num_rows, qkv_features] and the residual that it was made of.
  struct Projected {
    float* q_pre_rope = nullptr;
    float* q = nullptr;
    std::byte* kv_rows = nullptr;
  };
  void Project(Matmul matmul, const LayerWeights& layer, const float* x, const float* product, int num_rows,
               std::span<const uint32_t> positions, const Projected& out);
  // What the indexer scores keys with, of the same rows: [num_rows, KvLayout::index_query_floats].
  const float* index_queries() const { return index_queries_.data(); }

  // Queries alone, before RoPE, from what the layer's query projection gives [num_rows, query_projection_features].
  void Queries(Matmul matmul, const LayerWeights& layer, const float* product, int num_rows, float* q_pre_rope) {
    MakeQueries(matmul, layer, product, config_.query_projection_features(), num_rows, nullptr,
                {.q_pre_rope = q_pre_rope});
  }

  // What the output projection takes, [num_rows, o_features], from attention [num_rows, num_query_heads, head_dim].
  const float* Values(Matmul matmul, const LayerWeights& layer, const float* attention, int num_rows);

 private:
  void MakeQueries(Matmul matmul, const LayerWeights& layer, const float* product, int64_t stride, int num_rows,
                   const uint32_t* positions, const Projected& out);
  void ProjectIndex(Matmul matmul, const LayerWeights& layer, const float* x, const float* product, int num_rows,
                    std::span<const uint32_t> positions);

  const ModelConfig& config_;
  const LatentConfig& latent_;
  const KvLayout layout_;
  const KernelTable& kernels_;
  Executor& executor_;
  const RopeTable rope_;  // of the turning part

  std::vector<float> heads_;          // [max_rows, num_query_heads, query_dim]
  std::vector<float> values_;         // [max_rows, num_query_heads, value_dim]
  std::vector<float> index_keys_;     // [max_rows, index_dim]
  std::vector<float> index_queries_;  // [max_rows, index_query_floats]
};

}  // namespace winnow
