#pragma once
#include <cstddef>
#include <string>

#include "common/model/checkpoint.h"
#include "common/model/model_config.h"

namespace winnow {

// Where the bytes of a model's weights go; ModelWeights allocates exactly this.
struct WeightMemory {
  // Packed, in the compute dtype or quantised, over all layers.
  size_t qkv_bytes = 0;
  size_t query_projection_bytes = 0;  // only where the q rows are not whole panels of qkv
  size_t latent_bytes = 0;            // of latent attention, what it has beside qkv and o
  size_t o_bytes = 0;
  size_t gate_up_bytes = 0;
  size_t down_bytes = 0;
  size_t expert_bytes = 0;  // of sparse layers, with their f32 routers
  size_t lm_head_bytes = 0;
  // f32.
  size_t norm_and_bias_bytes = 0;
  // Mapped from the file in its stored dtype, resident as far as tokens touch it.
  size_t embedding_bytes = 0;

  size_t packed_bytes() const {
    return qkv_bytes + query_projection_bytes + latent_bytes + o_bytes + gate_up_bytes + down_bytes + expert_bytes +
           lm_head_bytes;
  }
  size_t total_bytes() const { return packed_bytes() + norm_and_bias_bytes + embedding_bytes; }
  // One line for logs and errors: the total and its parts.
  std::string ToString() const;
};

// True when the q rows of the packed qkv matrix are whole panels, so that they are a matrix of their own.
bool QueryRowsAreWholePanels(const ModelConfig& config);

// `compute_dtype`: kBf16 or kF32. `embedding_dtype`: of the stored embedding. Without a checkpoint nothing is
// quantised; with one whose tensors are not as they should be, which loading says, the sizes mean nothing.
WeightMemory ComputeWeightMemory(const ModelConfig& config, Dtype compute_dtype, Dtype embedding_dtype,
                                 const Checkpoint* checkpoint = nullptr);

}  // namespace winnow
