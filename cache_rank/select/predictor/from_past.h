#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/select/predictor/query_ring.h"
#include "common/selection/selection_spec.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Rotary embedding of the served model (identity.proto, KvShape).
struct RopeShape {
  std::vector<float> inv_freq;  // [head_dim / 2]
  float attention_factor = 1;
};

// True when layer `layer` selects with its own query, which the inference rank sends in that layer's frame.
constexpr bool SelectsWithOwnQuery(const SelectionSpec& spec, int layer) {
  return spec.predictor == Predictor::kExact ||
         (spec.predictor == Predictor::kDepth && layer < static_cast<int>(spec.lookahead));
}

// The specification that rows to be moved ahead are selected with: that of `spec`, with the temporal predictor.
SelectionSpec PrefetchSpec(const SelectionSpec& spec);

// Queries before a position that its own is predicted from, where there are as many; 0: none.
uint32_t PastQueries(const SelectionSpec& spec);

// Queries of a layer that the ring has to hold for this specification.
uint32_t RingQueries(const SelectionSpec& spec);

// Predicts the queries of heads [first_head, first_head + num_heads) at `position` from the ring's queries up to that
// of position - 1: `last` rotates that one; `temporal` blends the newest window + 1 (fewer when there are fewer),
// before RoPE and then rotates, or after RoPE. Writes [num_heads, head_dim], rotated.
void PredictFromPast(const KernelTable& kernels, const RopeShape& rope, const SelectionSpec& spec,
                     const QueryRing& ring, uint32_t position, int first_head, int num_heads, int head_dim,
                     float* queries);

}  // namespace winnow
