#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "cache_rank/predictor/query_ring.h"
#include "cache_rank/residency.h"

namespace winnow {

inline constexpr uint32_t kNoPosition = UINT32_MAX;

// Selection state of one (sequence, layer, kv head).
struct HeadSelection {
  std::vector<uint32_t> selected;                        // Sel(LayerSelection::selected_position), ascending
  float mass = std::numeric_limits<float>::quiet_NaN();  // captured mass of mass_position
  uint32_t mass_position = kNoPosition;
  uint64_t scored_key_bytes = 0;  // read for all selections so far
  HeadResidency residency;
};

// Selection state of one (sequence, layer). Only the queries survive a re-attach: everything else is recomputed from
// rows, queries and specification.
struct LayerSelection {
  LayerSelection(uint32_t ring_queries, size_t query_floats, int num_kv_heads)
      : queries(ring_queries, query_floats), target(query_floats), heads(num_kv_heads) {}

  QueryRing queries;
  std::vector<float> target;  // [num_query_heads, head_dim] rotated query of target_position, where one is sent
  uint32_t target_position = kNoPosition;
  uint32_t scheduled_position = kNoPosition;  // a scoring task for it is queued
  uint32_t selected_position = kNoPosition;   // `selected` of every head is for it
  uint32_t sent_position = kNoPosition;       // its deltas are on their way
  std::vector<HeadSelection> heads;

  void ResetExceptQueries(uint32_t max_positions) {
    target_position = scheduled_position = selected_position = sent_position = kNoPosition;
    for (HeadSelection& head : heads) {
      head.selected.clear();
      head.mass_position = kNoPosition;
      head.residency.Reset(max_positions);
    }
  }
};

}  // namespace winnow
