#pragma once
#include <vector>

#include "common/model/rope_config.h"

namespace winnow {

struct ModelConfig;

// What a rotation needs: pair i of a head turns by p * inv_freq[i] at position p; cos and sin are multiplied by
// attention_factor.
struct RopeTable {
  std::vector<float> inv_freq;  // [head_dim / 2]
  float attention_factor = 1;
};

// What YaRN scales attention with, of a context that grew by `factor`.
double YarnMscale(double factor, double mscale);

// The formulas of transformers' modeling_rope_utils, in f32 where they are f32 there (an angle is a large position
// times an inverse frequency, so its last bits matter). Dynamic NTK changes frequencies only beyond
// max_position_embeddings, which is never served; up to there it is the default.
RopeTable ComputeRope(const RopeConfig& config, int head_dim);

// `rope`, the model's or that of its windowed layers, for heads as attention has them: pair i is elements i and i +
// head_dim / 2, and pairs that do not turn have frequency 0. Where only a part of a head turns, and of latent
// attention, this is not how heads are stored; keys of latent attention carry the attention factor.
RopeTable RopeOfHeads(const ModelConfig& config, const RopeConfig& rope);

// What products of those heads are scaled with before a softmax.
float AttentionScale(const ModelConfig& config);

}  // namespace winnow
