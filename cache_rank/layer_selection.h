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
  std::vector<uint32_t> previous;                        // Sel(LayerSelection::previous_position), where it is kept
  float mass = std::numeric_limits<float>::quiet_NaN();  // captured mass of mass_position
  uint32_t mass_position = kNoPosition;
  HeadResidency residency;
};

// Selection state of one (sequence, layer). Queries survive a re-attach, and so do the newest two selections where
// positions share one: a re-attach between anchors goes on with its anchor's. Everything else is recomputed from rows,
// queries and specification.
struct LayerSelection {
  LayerSelection(uint32_t ring_queries, size_t query_floats, int num_kv_heads)
      : queries(ring_queries, query_floats), target(query_floats), heads(num_kv_heads) {}

  QueryRing queries;
  std::vector<float> target;  // [num_query_heads, head_dim] rotated query of target_position, where one is sent
  uint32_t target_position = kNoPosition;
  uint32_t scheduled_position = kNoPosition;  // a scoring task for it is queued
  uint32_t selected_position = kNoPosition;   // an anchor: `selected` of every head is for it
  uint32_t previous_position = kNoPosition;   // the anchor before it; kNoPosition where every position is one
  uint32_t sent_position = kNoPosition;       // its deltas are on their way
  std::vector<HeadSelection> heads;

  bool HoldsSelection(uint32_t anchor) const { return selected_position == anchor || previous_position == anchor; }

  // Before `position` is decoded by another attachment: keeps the selection of its anchor where that is an earlier one.
  void Restart(uint32_t position, uint32_t anchor, uint32_t max_positions) {
    const bool keeps = anchor < position && HoldsSelection(anchor);
    if (keeps && selected_position != anchor) {
      for (HeadSelection& head : heads) head.selected.swap(head.previous);
    }
    selected_position = keeps ? anchor : kNoPosition;
    target_position = scheduled_position = previous_position = sent_position = kNoPosition;
    for (HeadSelection& head : heads) {
      if (!keeps) head.selected.clear();
      head.mass_position = kNoPosition;
      head.residency.Reset(max_positions);
    }
  }
};

}  // namespace winnow
