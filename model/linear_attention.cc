#include "model/linear_attention.h"

namespace winnow {
namespace {

size_t ScratchFloats(const GatedDeltaConfig& delta) {
  return GatedDeltaScratchFloats(delta.num_key_heads, delta.num_value_heads, delta.key_dim, delta.value_dim);
}

struct Places {
  HeadPlaces query, key, value, gate;
  HeadPlaces learning, forgetting;  // of the rates
};

// Where the products of a layer have the heads (GatedDeltaConfig::by_key_head).
Places PlacesOf(const GatedDeltaConfig& delta) {
  const int key_dim = delta.key_dim, keys = delta.key_features(), values = delta.values_per_key();
  const int value_floats = values * delta.value_dim, group = 2 * key_dim + 2 * value_floats;
  if (delta.by_key_head) {
    return {.query = {0, group},
            .key = {key_dim, group},
            .value = {2 * key_dim, group},
            .gate = {2 * key_dim + value_floats, group},
            .learning = {0, 2 * values},
            .forgetting = {values, 2 * values}};
  }
  return {.query = {0, key_dim},
          .key = {keys, key_dim},
          .value = {2 * keys, value_floats},
          .gate = {delta.conv_features(), value_floats},
          .learning = {0, values},
          .forgetting = {delta.num_value_heads, values}};
}

}  // namespace

LinearAttention::LinearAttention(const ModelConfig& config, const KernelTable& kernels, Executor& executor,
                                 int max_rows)
    : config_(config), delta_(*config.delta), kernels_(kernels), executor_(executor) {
  const size_t rows = max_rows;
  projected_.resize(rows * delta_.projected_features());
  rates_.resize(rows * 2 * delta_.num_value_heads);
  scratch_.resize(rows * ScratchFloats(delta_));
  out_.resize(rows * delta_.value_features());
  int place = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    state_places_.push_back(place);
    place += config.is_delta(layer) ? 1 : 0;
  }
}

size_t LinearAttention::ActivationBytes(const ModelConfig& config, int max_rows) {
  if (!config.delta) return 0;
  const size_t row_floats = static_cast<size_t>(config.delta->projected_features()) +
                            2 * config.delta->num_value_heads + ScratchFloats(*config.delta) +
                            config.delta->value_features();
  return max_rows * row_floats * sizeof(float);
}

void LinearAttention::Project(Matmul matmul, const LayerWeights& weights, const float* x, int num_rows) {
  MatmulParams params{.x = x,
                      .x_stride = config_.hidden_size,
                      .num_rows = num_rows,
                      .transform = InputTransform::kRmsNorm,
                      .norm_weight = weights.input_norm.data(),
                      .norm_epsilon = config_.rms_norm_eps,
                      .weight = weights.qkv,
                      .y = projected_.data(),
                      .y_stride = delta_.projected_features()};
  matmul(executor_, params);
  params.weight = weights.delta.rates;
  params.y = rates_.data();
  params.y_stride = 2 * delta_.num_value_heads;
  // Both matmuls give the same bits with f32 weights; this one takes any number of rows.
  kernels_.prefill_matmul(executor_, params);
}

const float* LinearAttention::Attend(Matmul matmul, int layer, const LayerWeights& weights, const float* x,
                                     int num_rows, std::span<const StatePiece> pieces) {
  Project(matmul, weights, x, num_rows);
  pieces_.clear();
  for (const StatePiece& piece : pieces) {
    float* const state = piece.state + state_places_[static_cast<size_t>(layer)] * delta_.layer_floats();
    pieces_.push_back({.first_row = piece.first_row,
                       .num_rows = piece.num_rows,
                       .tail = state,
                       .state = state + delta_.tail_floats()});
  }
  const Places at = PlacesOf(delta_);
  kernels_.gated_delta(executor_, {.projected = projected_.data(),
                                   .projected_stride = delta_.projected_features(),
                                   .query = at.query,
                                   .key = at.key,
                                   .value = at.value,
                                   .gate = at.gate,
                                   .rates = rates_.data(),
                                   .rates_stride = 2 * delta_.num_value_heads,
                                   .learning = at.learning,
                                   .forgetting = at.forgetting,
                                   .num_key_heads = delta_.num_key_heads,
                                   .num_value_heads = delta_.num_value_heads,
                                   .key_dim = delta_.key_dim,
                                   .value_dim = delta_.value_dim,
                                   .conv_width = delta_.conv_width,
                                   .conv = weights.delta.conv.data(),
                                   .log_forgetting = weights.delta.log_forgetting.data(),
                                   .rate_bias = weights.delta.rate_bias.data(),
                                   .norm_weight = weights.delta.norm.data(),
                                   .norm_epsilon = config_.rms_norm_eps,
                                   .pieces = pieces_.data(),
                                   .num_pieces = static_cast<int>(pieces_.size()),
                                   .scratch = scratch_.data(),
                                   .out = out_.data()});
  return out_.data();
}

}  // namespace winnow
