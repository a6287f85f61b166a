#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "common/transport/wire.h"
#include "inference_rank/slot_pool.h"

namespace winnow {

// The resident KV of one sequence. Per (layer, kv head), a "list":
//   sinks [0, s) | ring: newest RingTokens positions, position p at p mod ring | pool: rows around the selection, by
//   pool index
// and the slots that attention at the current position reads, in position order.
//
// While the sequence attends everything (AttendsEverything), pool index i holds position s + i for every position that
// has left the recent window, and lists are extended here without the cache rank. After that the cache rank assigns
// pool indices (Delta frames). Owned by the engine thread.
class WorkingSet {
 public:
  // Pages that a sequence of at most max_positions needs, over all layers and kv heads.
  static uint32_t PagesNeeded(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions);
  static uint32_t PoolSlots(const SelectionSpec& spec, uint32_t max_positions);

  // Takes its pages from `slots`, which must outlive it. RESOURCE_EXHAUSTED when too few are free.
  static absl::StatusOr<WorkingSet> Create(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec,
                                           uint32_t max_positions);
  WorkingSet(WorkingSet&& other) noexcept;
  WorkingSet& operator=(WorkingSet&&) = delete;
  ~WorkingSet();

  uint32_t pool_slots() const { return pool_slots_; }
  uint32_t ring_tokens() const { return ring_tokens_; }
  // Rows that can be resident per (layer, kv head).
  uint32_t resident_rows() const { return sink_tokens_ + ring_tokens_ + pool_slots_; }
  uint32_t num_pages() const { return static_cast<uint32_t>(pages_.size()); }

  // Writes one row where position p lives: its ring slot and, below s, its sink slot. `row` is layout.row_bytes().
  void WriteRow(int layer, int kv_head, uint32_t position, const void* row);
  // Loads rows [first, first + count) of one list from contiguous memory, after prefill or attach: sinks, what the ring
  // at position `next_position` - 1 holds, and, if everything is attended there, the pool.
  void LoadRows(int layer, int kv_head, uint32_t first, uint32_t count, const std::byte* rows, uint32_t next_position);
  // Rows loaded by LoadRows up to `next_position` are complete.
  void FinishLoad(uint32_t next_position);

  // Prepares all lists for position p when everything is attended: moves rows that leave the recent window into the
  // pool.
  void AdvanceDense(uint32_t position);
  // Starts a list of position p after a selection: sinks, the selected pool rows, recent window. Pool indices in
  // position order. INVALID_ARGUMENT when an index is outside the grant.
  absl::Status SetSelection(int layer, int kv_head, uint32_t position, std::span<const uint32_t> pool_indices);
  // Copies `local` rows from the ring and `streamed` rows from `rows` into the pool. Not while attention runs on this
  // list.
  absl::Status CommitLocal(int layer, int kv_head, uint32_t position, std::span<const wire::LocalRow> local);
  absl::Status CommitStreamed(int layer, int kv_head, std::span<const uint32_t> pool_indices, const std::byte* rows);

  // Physical slots in position order for the position prepared last.
  std::span<const uint32_t> Slots(int layer, int kv_head) const { return lists_[List(layer, kv_head)]; }

 private:
  WorkingSet(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions);
  size_t List(int layer, int kv_head) const { return static_cast<size_t>(layer) * layout_.num_kv_heads + kv_head; }
  uint32_t PhysicalSlot(size_t list, uint32_t logical) const {
    return pages_[list * pages_per_list_ + logical / kSlotPageTokens] * kSlotPageTokens + logical % kSlotPageTokens;
  }
  uint32_t RingSlot(size_t list, uint32_t position) const {
    return PhysicalSlot(list, sink_tokens_ + position % ring_tokens_);
  }
  uint32_t PoolSlot(size_t list, uint32_t index) const {
    return PhysicalSlot(list, sink_tokens_ + ring_tokens_ + index);
  }
  uint32_t RecentStartOf(uint32_t position) const {
    return RecentStart(position, recent_tokens_, sink_tokens_, kBlockTokens);
  }
  void AppendRecent(size_t list, uint32_t recent_start, uint32_t position);

  SlotPool* slots_;
  KvLayout layout_;
  SelectionSpec spec_;
  uint32_t sink_tokens_;
  uint32_t recent_tokens_;
  uint32_t ring_tokens_;
  uint32_t pool_slots_;
  uint32_t pages_per_list_;
  std::vector<uint32_t> pages_;               // [list][pages_per_list_]
  std::vector<std::vector<uint32_t>> lists_;  // [list] physical slots
  uint32_t pooled_end_ = 0;                   // positions [s, pooled_end_) lie in the pool at their identity index
};

}  // namespace winnow
