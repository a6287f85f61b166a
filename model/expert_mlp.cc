#include "model/expert_mlp.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace winnow {
namespace {

size_t WidestExpert(const ModelConfig& config) {
  return std::max(config.moe.intermediate_size, config.moe.shared_intermediate_size);
}

}  // namespace

InputTransform GatedTransform(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return InputTransform::kSiluMul;
    case Activation::kGeluTanh:
      return InputTransform::kGeluTanhMul;
    case Activation::kClampedSilu:
      return InputTransform::kClampedSiluMul;
  }
  return InputTransform::kSiluMul;
}

ExpertMlp::ExpertMlp(const ModelConfig& config, const KernelTable& kernels, Executor& executor, int max_rows)
    : config_(config), kernels_(kernels), executor_(executor) {
  const size_t rows = max_rows, chosen = rows * config.moe.experts_per_token;
  logits_.resize(rows * config.moe.num_experts);
  experts_.resize(chosen);
  weights_.resize(chosen);
  first_.resize(static_cast<size_t>(config.moe.num_experts) + 1);
  rows_.resize(chosen);
  scales_.resize(chosen);
  taken_.resize(rows * config.hidden_size);
  gate_up_.resize(rows * 2 * WidestExpert(config));
  down_.resize(rows * config.hidden_size);
  sum_.resize(rows * config.hidden_size);
  all_rows_.resize(rows);
  std::iota(all_rows_.begin(), all_rows_.end(), 0u);
  ones_.assign(rows, 1.0f);
}

size_t ExpertMlp::ActivationBytes(const ModelConfig& config, int max_rows) {
  const MoeConfig& moe = config.moe;
  if (moe.num_experts == 0) return 0;
  const size_t row_words = static_cast<size_t>(moe.num_experts) + 4ull * moe.experts_per_token +
                           3ull * config.hidden_size + 2ull * WidestExpert(config) + 2;
  return static_cast<size_t>(max_rows) * row_words * sizeof(float);
}

MatmulParams ExpertMlp::NormedMatmul(const LayerWeights& layer, const float* x, int num_rows,
                                     const PackedMatrix& weight, std::span<const float> bias, float* y) const {
  return {.x = x,
          .x_stride = config_.hidden_size,
          .num_rows = num_rows,
          .transform = InputTransform::kRmsNorm,
          .norm_weight = layer.post_attention_norm.data(),
          .norm_epsilon = config_.rms_norm_eps,
          .weight = weight,
          .bias = bias.data(),
          .y = y,
          .y_stride = weight.out_features};
}

void ExpertMlp::Run(Matmul matmul, const LayerWeights& layer, float* x, int num_rows) {
  // Both matmuls give the same bits with f32 weights; this one takes any number of rows.
  kernels_.prefill_matmul(executor_, NormedMatmul(layer, x, num_rows, layer.router, layer.router_bias, logits_.data()));
  kernels_.route_experts(executor_, {.logits = logits_.data(),
                                     .num_rows = num_rows,
                                     .num_experts = config_.moe.num_experts,
                                     .experts_per_token = config_.moe.experts_per_token,
                                     .sigmoid = config_.moe.sigmoid,
                                     .correction = layer.router_correction.data(),
                                     .groups = config_.moe.groups,
                                     .groups_per_token = config_.moe.groups_per_token,
                                     .group_scores = config_.moe.group_scores,
                                     .normalizes = config_.moe.normalizes,
                                     .scale = config_.moe.scale,
                                     .experts = experts_.data(),
                                     .weights = weights_.data()});
  GroupByExpert(num_rows);
  std::fill_n(sum_.begin(), static_cast<size_t>(num_rows) * config_.hidden_size, 0.0f);
  for (int expert = 0; expert < config_.moe.num_experts; ++expert) {
    const uint32_t first = first_[expert], count = first_[expert + 1] - first;
    if (count > 0) RunExpert(matmul, layer, layer.experts[expert], x, {rows_.data() + first, count}, &scales_[first]);
  }
  if (config_.moe.shared_intermediate_size > 0) RunSharedExpert(matmul, layer, x, num_rows);
  kernels_.add_scaled_rows(executor_, {.x = sum_.data(),
                                       .width = config_.hidden_size,
                                       .rows = all_rows_.data(),
                                       .scales = ones_.data(),
                                       .num_rows = num_rows,
                                       .y = x});
}

void ExpertMlp::GroupByExpert(int num_rows) {
  const size_t per_row = config_.moe.experts_per_token, chosen = num_rows * per_row;
  std::fill(first_.begin(), first_.end(), 0);
  for (size_t i = 0; i < chosen; ++i) ++first_[experts_[i] + 1];
  for (size_t expert = 1; expert < first_.size(); ++expert) first_[expert] += first_[expert - 1];
  // Each group's begin moves to its end while it is filled, which is the next one's begin.
  for (size_t i = 0; i < chosen; ++i) {
    const uint32_t at = first_[experts_[i]]++;
    rows_[at] = static_cast<uint32_t>(i / per_row);
    scales_[at] = weights_[i];
  }
  std::copy_backward(first_.begin(), first_.end() - 1, first_.end());
  first_[0] = 0;
}

void ExpertMlp::RunExpert(Matmul matmul, const LayerWeights& layer, const ExpertWeights& expert, const float* x,
                          std::span<const uint32_t> rows, const float* scales) {
  const int num_rows = static_cast<int>(rows.size());
  const int hidden = config_.hidden_size;
  // Consecutive rows are read where they are; that of a lone sequence is one.
  const bool consecutive = rows.back() - rows.front() + 1 == rows.size();
  const float* taken = x + static_cast<size_t>(rows.front()) * hidden;
  if (!consecutive) {
    taken = taken_.data();
    kernels_.take_rows(executor_,
                       {.x = x, .width = hidden, .rows = rows.data(), .num_rows = num_rows, .out = taken_.data()});
  }
  matmul(executor_, NormedMatmul(layer, taken, num_rows, expert.gate_up, expert.gate_up_bias, gate_up_.data()));
  matmul(executor_, {.x = gate_up_.data(),
                     .x_stride = expert.gate_up.out_features,
                     .num_rows = num_rows,
                     .transform = GatedTransform(config_.activation),
                     .weight = expert.down,
                     .bias = expert.down_bias.data(),
                     .y = down_.data(),
                     .y_stride = hidden});
  kernels_.add_scaled_rows(executor_, {.x = down_.data(),
                                       .width = hidden,
                                       .rows = rows.data(),
                                       .scales = scales,
                                       .num_rows = num_rows,
                                       .y = sum_.data()});
}

void ExpertMlp::RunSharedExpert(Matmul matmul, const LayerWeights& layer, const float* x, int num_rows) {
  const float* shares = ones_.data();
  if (config_.moe.shared_gate) {
    kernels_.prefill_matmul(executor_, NormedMatmul(layer, x, num_rows, layer.shared_gate, {}, scales_.data()));
    for (int row = 0; row < num_rows; ++row) scales_[row] = 1 / (1 + std::exp(-scales_[row]));
    shares = scales_.data();
  }
  RunExpert(matmul, layer, {.gate_up = layer.gate_up, .down = layer.down}, x,
            {all_rows_.data(), static_cast<size_t>(num_rows)}, shares);
}

}  // namespace winnow
