#pragma once
#include <cstdint>

#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"
#include "inference_rank/memory/slot_order.h"

namespace winnow {

// Slot pages by memory: a GPU's, and pinned host memory that kernels of that GPU reach over PCIe.
struct SlotPages {
  uint32_t front = 0;
  uint32_t host = 0;
  uint32_t total() const { return front + host; }
  bool Hold(const SlotPages& wanted) const { return wanted.front <= front && wanted.host <= host; }
};

// Where the columns of a sequence's rows lie, 64 positions of all lists each, when its rows do not all go to the GPU's
// memory: [host_begin, host_end) in the host's. Sinks, the recent window of the prompt's end and the answer stay in
// front, because every step reads and writes them.
//
// A sequence that selects has staging pages beside them, of each list: rows that were selected are copied there, and
// are read there as long as they are selected again (AssignSlotsParams), so that a step fetches over PCIe what the
// steps before it have not.
struct SlotPlacement {
  uint32_t host_begin = 0, host_end = 0;
  uint32_t staging_pages = 0;  // of each list

  uint32_t host_columns() const { return host_end - host_begin; }
};

// What slots a sequence can do with.
struct SlotDemand {
  uint32_t pages = 0;  // with all rows in front
  // With rows in the host's memory, staging included; no pages: they may not lie there.
  SlotPages spread = {};
  uint32_t staging_pages = 0;  // over all lists, part of spread.front

  bool may_spread() const { return spread.total() > 0; }
  // Whether front memory that holds all of it would still stage what may come to the host's free memory: a sequence
  // that may spread does so otherwise, as rows in the host's memory are of no use without.
  bool LeavesRoomToStage(const SlotPages& free) const;
  // Whether it finds room where `shared` of its pages are there already, wherever those lie.
  bool FitsIn(const SlotPages& free, uint32_t shared) const;
};

// Slots of one GPU, and what selects there.
struct SlotTiers {
  SlotPages pages;             // all there are
  uint32_t staging_slots = 0;  // of a list, at most; 0: rows are read where they lie
};

// Whether steps read every row, or every key, of a sequence, and not only what they select: over PCIe that takes as
// long as the whole context takes to travel.
bool ReadsEveryRow(const SelectionSpec& spec, uint32_t prompt_tokens);

// Where the rows of a sequence of at most max_positions would lie that has not found room in front. Without host
// columns: they may not lie elsewhere. Sequences that read every row spread only where the GPU could never hold them.
SlotPlacement SpreadPlacement(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions,
                              uint32_t prompt_tokens, SlotOrder order, const SlotTiers& tiers);

// `pages`: that it needs in all.
SlotDemand DemandOf(const KvLayout& layout, const SlotPlacement& spread, uint32_t pages);

}  // namespace winnow
