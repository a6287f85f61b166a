#pragma once
#include <span>

#include "kernels/params/matmul.h"

namespace winnow {

// What a layer of linear attention has beside the products that begin and end a layer (GatedDeltaConfig).
struct DeltaWeights {
  // hidden_size -> of each value head how much the state learns, and how much it forgets. f32: what is forgotten is
  // multiplied up over all tokens that follow.
  PackedMatrix rates;
  std::span<const float> conv;            // [conv_width, conv_features], what the newest token is multiplied with last
  std::span<const float> log_forgetting;  // [num_value_heads], A_log
  std::span<const float> rate_bias;       // [num_value_heads], dt_bias
  std::span<const float> norm;            // [value_dim], of every head's output
};

}  // namespace winnow
