#pragma once
#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace winnow {

// Makes the selections of a model with random weights drift like those of a trained one. Every query head gets a
// direction of its own before RoPE, `strength` times as long as the rest of its query, as a bias: keys that lie along
// it are hot, rotation moves it on from position to position, and the rest of the query, which is new at every
// position, swaps keys in and out. The stronger the direction, the more of a selection the next one shares. Returns
// [num_layers][q_features].
std::vector<float> QueryBias(const ModelConfig& config, double strength, uint64_t seed);

// Mean share of the lists' entries that the entries of `before` hold too: two sets of num_lists lists of `stride`
// entries each, of which the first `count` are used, below `limit`.
double MeanOverlap(const std::vector<uint32_t>& before, const std::vector<uint32_t>& now, size_t stride, size_t count,
                   uint32_t limit);

}  // namespace winnow
