#pragma once
#include <cmath>

#include "common/model/model_config.h"

namespace winnow {

// How much work a piece of a prompt is. The unit is the matrices of one layer for one token; attention to what lies
// before it comes on top, in proportion to its FLOPs, as if both had the same rate.
struct PrefillWork {
  double per_earlier_token = 0;  // what it costs a token to attend to one earlier token, in units

  static PrefillWork Of(const ModelConfig& config) {
    // A layer of a hybrid model is one with rows and its share of the others.
    const double share = static_cast<double>(config.num_layers) / config.num_kv_layers() - 1;
    const double linear = config.delta ? config.delta->projected_features() + config.delta->value_features() : 0;
    const double hidden = config.hidden_size,
                 matrices = hidden * (config.qkv_features() + config.q_features() + share * linear) +
                            config.active_mlp_weights() / config.num_kv_layers();
    return {.per_earlier_token = 2.0 * config.q_features() / matrices};
  }

  // Of `tokens` tokens from position `first` on, through one layer.
  double ThroughLayer(double tokens, double first) const {
    return tokens * (1 + per_earlier_token * (first + tokens / 2));
  }
  // The most tokens from `first` on whose work through one layer is at most `work`.
  double TokensWithin(double work, double first) const {
    const double each = 1 + per_earlier_token * first;
    return 2 * work / (std::sqrt(each * each + 2 * per_earlier_token * work) + each);
  }
  // Whole ones: rounding takes none from what ThroughLayer says of them.
  double WholeTokensWithin(double work, double first) const {
    return std::floor(TokensWithin(work, first) * (1 + 1e-9));
  }
};

}  // namespace winnow
