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

// Selections of many lists: that of list i are the first counts[i] of the entries from i * stride on.
struct SelectedLists {
  size_t stride = 0;
  std::vector<uint32_t> entries = {}, counts = {};
};
// Mean share of the entries of `now`, all below `limit`, that the same list of `before` holds too; 1 without entries.
double MeanOverlap(const SelectedLists& before, const SelectedLists& now, uint32_t limit);

}  // namespace winnow
