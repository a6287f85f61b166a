#pragma once
#include <cstdint>

// The experts of a sparse layer: who computes which rows. What holds for all parameters stands in
// kernels/kernel_table.h.

namespace winnow {

// Chooses the experts of tokens: from router logits of a row come probabilities, by softmax over all experts or by a
// sigmoid of each; the `experts_per_token` experts of the largest probability plus `correction` are chosen, ties to the
// lower expert, and written in ascending order with their probabilities as weights. With several groups of consecutive
// experts only the groups_per_token best ones take part, by the sum of their group_scores largest corrected
// probabilities.
struct RouteParams {
  const float* logits = nullptr;  // [num_rows, num_experts]
  int num_rows = 0;
  int num_experts = 0;
  int experts_per_token = 0;
  bool sigmoid = false;
  const float* correction = nullptr;  // [num_experts], may be null
  int groups = 1;                     // divides num_experts
  int groups_per_token = 1;
  int group_scores = 2;         // 1 or 2
  bool normalizes = false;      // the chosen probabilities are divided by their sum
  float scale = 1;              // and then multiplied with this
  uint32_t* experts = nullptr;  // [num_rows, experts_per_token]
  float* weights = nullptr;     // [num_rows, experts_per_token]
};

// Copies rows of activations: out[i] = x[rows[i]].
struct TakeRowsParams {
  const float* x = nullptr;  // [.., width]
  int width = 0;
  const uint32_t* rows = nullptr;  // [num_rows]
  int num_rows = 0;
  float* out = nullptr;  // [num_rows, width]
};

// Adds rows with a factor each: y[rows[i]] += scales[i] * x[i]. No row is named twice.
struct AddScaledRowsParams {
  const float* x = nullptr;  // [num_rows, width]
  int width = 0;
  const uint32_t* rows = nullptr;  // [num_rows]
  const float* scales = nullptr;   // [num_rows]
  int num_rows = 0;
  float* y = nullptr;  // [.., width]
};

}  // namespace winnow
