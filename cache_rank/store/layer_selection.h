#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/select/policy/budget_growth.h"
#include "cache_rank/select/predictor/query_ring.h"
#include "cache_rank/select/scorer/captured_mass.h"
#include "cache_rank/store/residency.h"
#include "cache_rank/store/working_set_meter.h"
#include "common/base/kv_layout.h"

namespace winnow {

inline constexpr uint32_t kNoPosition = UINT32_MAX;

// Selection state of one (sequence, layer, kv head).
struct HeadSelection {
  explicit HeadSelection(const BudgetGrowth& growth) : growth(growth) {}

  // Sel(LayerSelection::selected_position), ascending. With a list per query head: the union of the lists, and the
  // heads whose list holds each row; otherwise no members.
  std::vector<uint32_t> selected;
  std::vector<QueryHeadMask> members;
  // Those of LayerSelection::previous_position, where they are kept.
  std::vector<uint32_t> previous;
  std::vector<QueryHeadMask> previous_members;
  CapturedMassFigure mass;  // of mass_position
  uint32_t mass_position = kNoPosition;
  uint64_t scored_key_bytes = 0;  // read for all selections and verifications so far
  HeadResidency residency;
  WorkingSetMeter working_set;  // survives a re-attach: it says what the sequence will need again
  BudgetGrowth growth;          // survives a re-attach
};

// Selection state of one (sequence, layer). Queries and the guard's records survive a re-attach, and so do the newest
// two selections where positions share one: a re-attach between anchors goes on with its anchor's. Everything else is
// recomputed from rows, queries and specification.
struct LayerSelection {
  // `heads` are the caller's to add.
  LayerSelection(uint32_t ring_queries, size_t query_floats)
      : queries(ring_queries, query_floats), target(query_floats) {}

  QueryRing queries;
  // [num_query_heads, head_dim] rotated query of target_position, where one is sent; for the model's own indexer what
  // that scores keys with, [KvLayout::index_query_floats].
  std::vector<float> target;
  uint32_t target_position = kNoPosition;
  std::vector<float> hidden;  // [hidden_size] residual of hidden_position that the target is projected from; else empty
  uint32_t hidden_position = kNoPosition;
  uint32_t scheduled_position = kNoPosition;  // a scoring task for it is queued
  uint32_t selected_position = kNoPosition;   // an anchor: `selected` of every head is for it
  uint32_t previous_position = kNoPosition;   // the anchor before it; kNoPosition where every position is one
  uint32_t sent_position = kNoPosition;       // its deltas are on their way
  uint32_t verified_end = 0;                  // sparse positions below have their verifications
  std::vector<HeadSelection> heads;

  // What `position` is to be selected with has come.
  bool HasTarget(uint32_t position) const { return target_position == position || hidden_position == position; }
  // A residual has come whose target has not been projected yet.
  bool needs_projection() const { return hidden_position != kNoPosition && target_position != hidden_position; }
  bool HoldsSelection(uint32_t anchor) const { return selected_position == anchor || previous_position == anchor; }

  // Before `position` is decoded by another attachment: keeps the selection of its anchor where that is an earlier one.
  void Restart(uint32_t position, uint32_t anchor, uint32_t max_positions) {
    const bool keeps = anchor < position && HoldsSelection(anchor);
    if (keeps && selected_position != anchor) {
      for (HeadSelection& head : heads) {
        head.selected.swap(head.previous);
        head.members.swap(head.previous_members);
      }
    }
    selected_position = keeps ? anchor : kNoPosition;
    target_position = hidden_position = scheduled_position = previous_position = sent_position = kNoPosition;
    for (HeadSelection& head : heads) {
      if (!keeps) head.selected.clear();
      if (!keeps) head.members.clear();
      head.mass_position = kNoPosition;
      head.residency.Reset(max_positions);
    }
  }
};

}  // namespace winnow
