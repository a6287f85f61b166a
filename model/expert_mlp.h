#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "common/model/model_config.h"
#include "kernels/kernel_table.h"
#include "model/weights/weights.h"

namespace winnow {

// What the product behind a gated MLP's first one does with its input.
InputTransform GatedTransform(Activation activation);

// The MLP of a sparse layer: routes each row of the residual to its experts, and runs each expert that any row wants
// once, over all rows that want it. So a prompt is one product for each matrix of an expert, and a decode step reads
// the matrices of the experts it touches and no others.
//
// What a row's experts give is added up in ascending order of the experts, whatever other rows there are: its bits are
// its own. Holds the activations; the rest is borrowed.
class ExpertMlp {
 public:
  using Matmul = void (*)(Executor&, const MatmulParams&);

  // `config` must have a mixture of experts.
  ExpertMlp(const ModelConfig& config, const KernelTable& kernels, Executor& executor, int max_rows);

  // Bytes that the activations of `max_rows` rows take.
  static size_t ActivationBytes(const ModelConfig& config, int max_rows);

  // x += the layer's experts, shared ones too, of norm(x); x [num_rows, hidden_size]. `matmul` takes their products.
  void Run(Matmul matmul, const LayerWeights& layer, float* x, int num_rows);

 private:
  // Sorts the rows by expert: afterwards those of expert e are rows_ [first_[e], first_[e + 1]), ascending.
  void GroupByExpert(int num_rows);
  // sum_[rows[i]] += scales[i] * expert(norm(x[rows[i]]))
  void RunExpert(Matmul matmul, const LayerWeights& layer, const ExpertWeights& expert, const float* x,
                 std::span<const uint32_t> rows, const float* scales);
  void RunSharedExpert(Matmul matmul, const LayerWeights& layer, const float* x, int num_rows);
  MatmulParams NormedMatmul(const LayerWeights& layer, const float* x, int num_rows, const PackedMatrix& weight,
                            std::span<const float> bias, float* y) const;

  const ModelConfig& config_;
  const KernelTable& kernels_;
  Executor& executor_;

  std::vector<float> logits_;       // [max_rows, num_experts]
  std::vector<uint32_t> experts_;   // [max_rows, experts_per_token]
  std::vector<float> weights_;      // [max_rows, experts_per_token]
  std::vector<uint32_t> first_;     // [num_experts + 1]
  std::vector<uint32_t> rows_;      // [max_rows * experts_per_token]
  std::vector<float> scales_;       // [max_rows * experts_per_token]
  std::vector<float> taken_;        // [max_rows, hidden_size] rows of one expert
  std::vector<float> gate_up_;      // [max_rows, 2 * the widest expert's intermediate size]
  std::vector<float> down_;         // [max_rows, hidden_size]
  std::vector<float> sum_;          // [max_rows, hidden_size] of a row's experts
  std::vector<uint32_t> all_rows_;  // 0, 1, .. max_rows - 1
  std::vector<float> ones_;         // [max_rows]
};

}  // namespace winnow
