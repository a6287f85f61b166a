#pragma once
#include <span>
#include <vector>

#include "common/model/model_config.h"
#include "kernels/kernel_table.h"
#include "model/weights/weights.h"

namespace winnow {

// Rows of a batch that are consecutive positions of one sequence, with the state that it keeps in the place of rows
// (GatedDeltaConfig), which advances by those positions. The caller's.
struct StatePiece {
  int first_row = 0;
  int num_rows = 0;
  float* state = nullptr;  // [state_floats], of all layers that keep one
};

// Linear attention of a hybrid model's layers on the CPU, but for the product that ends it. Holds its activations;
// borrows the rest.
class LinearAttention {
 public:
  using Matmul = void (*)(Executor&, const MatmulParams&);

  LinearAttention(const ModelConfig& config, const KernelTable& kernels, Executor& executor, int max_rows);
  // Of a model without such layers: 0.
  static size_t ActivationBytes(const ModelConfig& config, int max_rows);

  // What the output projection of `layer` reads, [num_rows, value_features], valid until the next call. `x` is the
  // residual that enters the layer.
  const float* Attend(Matmul matmul, int layer, const LayerWeights& weights, const float* x, int num_rows,
                      std::span<const StatePiece> pieces);

 private:
  void Project(Matmul matmul, const LayerWeights& weights, const float* x, int num_rows);

  const ModelConfig& config_;
  const GatedDeltaConfig& delta_;
  const KernelTable& kernels_;
  Executor& executor_;
  std::vector<int> state_places_;  // [num_layers] which of the layers with a state
  std::vector<float> projected_;   // [max_rows, projected_features]
  std::vector<float> rates_;       // [max_rows, 2, num_value_heads]
  std::vector<float> scratch_;     // [max_rows] of the kernel's
  std::vector<float> out_;         // [max_rows, value_features]
  std::vector<DeltaPiece> pieces_;
};

}  // namespace winnow
