#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "cache_rank/policy/budget_growth.h"
#include "cache_rank/predictor/query_ring.h"
#include "cache_rank/residency.h"

namespace winnow {

inline constexpr uint32_t kNoPosition = UINT32_MAX;

// Selection state of one (sequence, layer, kv head).
struct HeadSelection {
  explicit HeadSelection(const BudgetGrowth& growth) : growth(growth) {}

  std::vector<uint32_t> selected;                        // Sel(LayerSelection::selected_position), ascending
  float mass = std::numeric_limits<float>::quiet_NaN();  // captured mass of mass_position
  uint32_t mass_position = kNoPosition;
  uint64_t scored_key_bytes = 0;  // read for all selections and verdicts so far
  HeadResidency residency;
  BudgetGrowth growth;  // survives a re-attach
};

// Selection state of one (sequence, layer). Only the queries and the guard's records survive a re-attach: everything
// else is recomputed from rows, queries and specification.
struct LayerSelection {
  LayerSelection(uint32_t ring_queries, size_t query_floats, int num_kv_heads, const BudgetGrowth& growth)
      : queries(ring_queries, query_floats), target(query_floats), heads(num_kv_heads, HeadSelection(growth)) {}

  QueryRing queries;
  std::vector<float> target;  // [num_query_heads, head_dim] rotated query of target_position, where one is sent
  uint32_t target_position = kNoPosition;
  std::vector<float> hidden;  // [hidden_size] residual of hidden_position that the target is projected from; else empty
  uint32_t hidden_position = kNoPosition;
  uint32_t scheduled_position = kNoPosition;  // a scoring task for it is queued
  uint32_t selected_position = kNoPosition;   // `selected` of every head is for it
  uint32_t sent_position = kNoPosition;       // its deltas are on their way
  uint32_t judged_end = 0;                    // sparse positions below have their verdicts
  std::vector<HeadSelection> heads;

  // What `position` is to be selected with has come.
  bool HasTarget(uint32_t position) const { return target_position == position || hidden_position == position; }
  // A residual has come whose target has not been projected yet.
  bool needs_projection() const { return hidden_position != kNoPosition && target_position != hidden_position; }

  void ResetExceptQueries(uint32_t max_positions) {
    target_position = hidden_position = scheduled_position = selected_position = sent_position = kNoPosition;
    for (HeadSelection& head : heads) {
      head.selected.clear();
      head.mass_position = kNoPosition;
      head.residency.Reset(max_positions);
    }
  }
};

}  // namespace winnow
