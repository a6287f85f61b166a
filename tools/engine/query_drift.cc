#include "tools/engine/query_drift.h"

#include <cmath>
#include <random>

#include "common/base/check.h"
#include "common/model/rope.h"

namespace winnow {
namespace {

// A pair that turns by kFastestTurn from one position to the next forgets its part of a direction at once; one that
// turns by less than kSlowTurn keeps it for longer than pools hold rows. Between the two lies what makes hot keys
// drift, and gets about half of a direction's square.
constexpr float kFastestTurn = 0.7f, kSlowTurn = 0.1f;
constexpr float kDrift = 2.2f;

float Weight(float turn) {
  if (turn > kFastestTurn) return 0;
  return turn > kSlowTurn ? kDrift : 1;
}

}  // namespace

std::vector<float> QueryBias(const ModelConfig& config, double strength, uint64_t seed) {
  const RopeTable rope = ComputeRope(config.rope, config.head_dim);
  const int half = config.head_dim / 2;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> bias(static_cast<size_t>(config.num_layers) * config.q_features());
  for (size_t head = 0; head < bias.size() / config.head_dim; ++head) {
    float* const values = bias.data() + head * config.head_dim;
    double square = 0;
    for (int d = 0; d < config.head_dim; ++d) {
      values[d] = Weight(rope.inv_freq[d % half]) * static_cast<float>(normal(random));
      square += static_cast<double>(values[d]) * values[d];
    }
    // The rest of a query has elements of the size of one.
    const double scale = strength * std::sqrt(config.head_dim / square);
    for (int d = 0; d < config.head_dim; ++d) values[d] = static_cast<float>(values[d] * scale);
  }
  return bias;
}

double MeanOverlap(const SelectedLists& before, const SelectedLists& now, uint32_t limit) {
  WINNOW_CHECK(before.counts.size() == now.counts.size() && before.stride == now.stride);
  std::vector<size_t> seen_in(limit, 0);  // list + 1 that held it last
  size_t shared = 0, all = 0;
  for (size_t list = 0; list < now.counts.size(); ++list) {
    const size_t first = list * now.stride;
    for (size_t i = 0; i < before.counts[list]; ++i) seen_in[before.entries[first + i]] = list + 1;
    for (size_t i = 0; i < now.counts[list]; ++i) shared += seen_in[now.entries[first + i]] == list + 1;
    all += now.counts[list];
  }
  return all == 0 ? 1 : static_cast<double>(shared) / static_cast<double>(all);
}

}  // namespace winnow
