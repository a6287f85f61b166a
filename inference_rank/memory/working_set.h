#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/kv_shard.h"
#include "common/base/status.h"
#include "common/selection/attended_set.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/memory/resident_prefixes.h"
#include "inference_rank/memory/slot_order.h"
#include "inference_rank/memory/slot_placement.h"
#include "inference_rank/memory/slot_pool.h"
#include "model/head_parts.h"
#include "transport/wire/wire.h"

namespace winnow {

// The resident KV of one sequence. Per (layer, kv head), a "list":
//   sinks [0, s) | ring: newest RingTokens positions, position p at p mod ring | pool: rows around the selection, by
//   pool index
// and the slots that attention at the current position reads, in position order: one list of slots that the group's
// query heads share, or, after a selection with a list per query head, one for each of them.
//
// Dense attention needs no such parts, nor do sequences whose rows are selected where they are computed: their lists
// hold row p at slot p of their pages (SlotOrder::kByPosition), so that a step on the device finds every row by the
// page table alone (inference_rank/step/step_client.h). Only those that attend to everything can be prepared by
// Advance.
//
// Lists differ in their pools (PoolSlots): a streaming head has none. While a list attends everything, pool index i
// holds position s + i for every position that has left the recent window, and the list is extended here without the
// cache rank. After that the cache rank assigns pool indices (Delta frames), at the positions where NeedsDelta says so;
// in between the selection stays and the window grows. Owned by the engine thread.
class WorkingSet {
 public:
  // Pages that a sequence of at most max_positions needs, over all layers and kv heads; where slots lie in several
  // parts, in the part whose heads need most.
  static uint32_t PagesNeeded(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions, int parts = 1,
                              SlotOrder order = SlotOrder::kParts);

  // Takes its pages from `slots`, which must outlive it. RESOURCE_EXHAUSTED when too few are free. What attends to
  // everything lies by position, whatever `order` says. `prefix`, of a sequence whose rows lie so in one memory: its
  // first rows, which are resident already; pages are taken for the others, by position where `placement` has them lie
  // in the host's memory. Without a placement they are taken wherever they are free.
  static absl::StatusOr<WorkingSet> Create(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec,
                                           uint32_t max_positions, uint32_t prompt_tokens,
                                           SlotOrder order = SlotOrder::kParts, ResidentPrefixes::Lease prefix = {},
                                           std::optional<SlotPlacement> placement = std::nullopt);
  WorkingSet(WorkingSet&& other) noexcept;
  WorkingSet& operator=(WorkingSet&&) = delete;
  ~WorkingSet();

  uint32_t pool_slots() const { return total_pool_slots_; }  // over all lists
  // Over the lists of a shard: what PlanRow::pool_slots says.
  uint32_t pool_slots(const KvShard& shard) const;
  uint32_t pool_slots(int layer, int kv_head) const { return pool_slots_[List(layer, kv_head)]; }
  uint32_t ring_tokens() const { return ring_tokens_; }
  size_t num_lists() const { return pool_slots_.size(); }
  // Rows that can be resident, over all lists.
  uint64_t resident_rows() const {
    if (by_position_) return num_lists() * uint64_t{max_positions_};
    return num_lists() * uint64_t{sink_tokens_ + ring_tokens_} + total_pool_slots_;
  }
  uint32_t num_pages() const { return static_cast<uint32_t>(pages_.size()); }
  // All that it has, shared and staging ones included, by memory.
  SlotPages pages_held() const;
  bool is_by_position() const { return by_position_; }
  // [num_lists][pages_per_list], in front, for rows that were selected (SlotPlacement); empty: they are read where they
  // lie.
  std::span<const uint32_t> staging_pages() const { return staging_pages_; }

  // Rows below lie in pages that others may have, too: they are there, and are never written.
  uint32_t shared_positions() const { return shared_.positions(); }
  // Lists of each of the memories that share the model's heads: those of the others have pages of the same numbers.
  size_t lists_of_part() const { return ListsOfPart(layout_, slots_->num_parts()); }
  // The slot page of a list of one part, of those by position, with rows [64 * column, 64 * column + 64).
  uint32_t PageOf(size_t list, uint32_t column) const { return pages_[list * pages_of_list() + column]; }
  // Has its first rows, which are those of `prefix`, in the pages of that from now on. Not while the pages are
  // anybody's who computes with them.
  void Share(ResidentPrefixes::Lease prefix);
  // Shared rows below are in the index of the slots' keys; all rows are once SetIndexed has said so.
  uint32_t indexed_positions() const { return shared_.indexed_positions(); }
  bool is_indexed() const { return is_indexed_; }
  void SetIndexed() {
    if (!std::exchange(is_indexed_, true)) shared_.SetIndexed();
  }
  // Copies rows [0, count) of a layer, all of them shared, to the place of the prompt in prefill.
  void CopyShared(int layer, uint32_t count, const PrefillArena& arena) const;

  // The other way: rows [shared_positions(), count) of a layer, of lists by position, from the prompt's place, which
  // lies in the memory of the slots.
  void CopyPrompt(int layer, uint32_t count, const PrefillArena& arena) const;

  // Slot pages of the lists of a shard, [num_lists][pages_per_list], each of the part that has its kv head; lists that
  // have fewer repeat their last.
  std::vector<uint32_t> PagesOfLists(const KvShard& shard, uint32_t pages_per_list) const;

  // Writes one row where position p lives: its ring slot and, below s, its sink slot. `row` is layout.row_bytes().
  void WriteRow(int layer, int kv_head, uint32_t position, const void* row);
  // Where row `position` lives. Below s it has a second place, among the sinks.
  void* PlaceOfRow(int layer, int kv_head, uint32_t position) const {
    return slots_->row(RingSlot(List(layer, kv_head), position));
  }
  // Loads rows [first, first + count) of one list from contiguous memory, after prefill or attach: sinks, what the ring
  // at position `next_position` - 1 holds, and, if the list attends everything there, the pool. Shared rows are there.
  enum class RowsIn { kHost, kSlotMemory };  // the memory that `rows` lies in
  void LoadRows(int layer, int kv_head, uint32_t first, uint32_t count, const std::byte* rows, uint32_t next_position,
                RowsIn rows_in = RowsIn::kHost);
  // Rows loaded by LoadRows up to `next_position` are complete: it is the first to be decoded in this attachment.
  void FinishLoad(uint32_t next_position);

  uint32_t attach_position() const { return attach_position_; }

  // As the free functions of attended_set.h, for this sequence and attachment.
  bool AttendsEverything(size_t list, uint32_t position) const {
    return winnow::AttendsEverything(spec_, list, position, prompt_tokens_);
  }
  bool IsSparse(size_t list, uint32_t position) const {
    return winnow::IsSparse(spec_, list, position, prompt_tokens_);
  }
  bool NeedsDelta(size_t list, uint32_t position) const {
    return winnow::NeedsDelta(spec_, list, position, prompt_tokens_, attach_position_);
  }
  bool NeedsSelection(size_t list, uint32_t position) const {
    return winnow::NeedsSelection(spec_, list, position, prompt_tokens_);
  }

  // Prepares the lists that need no delta at position p: where everything is attended, rows that leave the recent
  // window move into the pool; elsewhere the selection stays.
  void Advance(uint32_t position);
  // Starts a list of position p after a selection: sinks, the selected pool rows, recent window. Pool indices in
  // position order; `members` as long where the specification gives each query head a list, which then reads the
  // indices whose mask has its bit, and empty elsewhere. INVALID_ARGUMENT when an index is outside the grant, a mask
  // names no head or one outside of the group, or members are there or missing when they should not.
  absl::Status SetSelection(int layer, int kv_head, uint32_t position, std::span<const uint32_t> pool_indices,
                            std::span<const QueryHeadMask> members = {});
  // Copies `local` rows from the ring and `streamed` rows from `rows` into the pool. Not while attention runs on this
  // list. `keep`: as RowMover says.
  absl::Status CommitLocal(int layer, int kv_head, uint32_t position, std::span<const wire::LocalRow> local);
  absl::Status CommitStreamed(int layer, int kv_head, std::span<const uint32_t> pool_indices, const std::byte* rows,
                              const std::shared_ptr<const void>& keep = nullptr);
  bool ReleaseRead() { return slots_->ReleaseRead(); }

  // Physical slots in position order for the position prepared last, as one list for all query heads of the group
  // (NumSlotLists 1) or one for each.
  int NumSlotLists(int layer, int kv_head) const { return split_[List(layer, kv_head)] ? lists_per_head_ : 1; }
  std::span<const uint32_t> Slots(int layer, int kv_head, int i = 0) const {
    return slot_lists_[List(layer, kv_head) * lists_per_head_ + i];
  }

 private:
  WorkingSet(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions,
             uint32_t prompt_tokens, SlotOrder order);
  size_t List(int layer, int kv_head) const { return layout_.list(layer, kv_head); }
  size_t pages_of_list() const { return pages_.size() / lists_of_part(); }  // by position
  uint32_t PhysicalSlot(size_t list, uint32_t logical) const {
    const uint32_t page = pages_[first_page_[list] + logical / kSlotPageTokens];
    return first_slot_[list] + page * kSlotPageTokens + logical % kSlotPageTokens;
  }
  uint32_t RingSlot(size_t list, uint32_t position) const {
    return PhysicalSlot(list, by_position_ ? position : sink_tokens_ + position % ring_tokens_);
  }
  // Logical index of the first of the pool's slots.
  uint32_t pool_base() const { return sink_tokens_ + (by_position_ ? 0 : ring_tokens_); }
  uint32_t PoolSlot(size_t list, uint32_t index) const { return PhysicalSlot(list, pool_base() + index); }
  // Copies rows [begin, end) of lists by position, `begin` at a page, as copy_of(head, first, slots) says for the rows
  // from `first` to the end of their page, which lie at `slots`.
  template <typename CopyOf>
  void CopyByPages(int layer, uint32_t begin, uint32_t end, CopyOf copy_of) const;
  absl::Status TakePages(uint32_t needed, const std::optional<SlotPlacement>& placement);
  void NotePieces();
  uint32_t WindowStartOf(uint32_t position) const { return WindowStart(spec_, position, prompt_tokens_); }
  uint32_t PooledEndOf(uint32_t position) const { return PooledEnd(spec_, position, prompt_tokens_); }
  void AdvanceByPosition(size_t list, uint32_t position);
  void AdvanceDense(size_t list, uint32_t position);
  void AdvanceKept(size_t list, uint32_t position);
  void AppendSinks(size_t list, std::vector<uint32_t>& slots) const;
  void AppendPool(size_t list, std::span<const uint32_t> indices, std::vector<uint32_t>& slots) const;
  void AppendRecent(size_t list, uint32_t recent_start, uint32_t position, std::vector<uint32_t>& slots) const;
  // Those of a list that are in use.
  std::span<std::vector<uint32_t>> SlotListsOf(size_t list) {
    return {&slot_lists_[list * lists_per_head_], static_cast<size_t>(split_[list] ? lists_per_head_ : 1)};
  }

  SlotPool* slots_;
  KvLayout layout_;
  SelectionSpec spec_;
  bool by_position_;
  uint32_t max_positions_;
  uint32_t sink_tokens_;
  uint32_t ring_tokens_;
  uint32_t prompt_tokens_;
  uint32_t attach_position_ = 0;
  uint32_t total_pool_slots_ = 0;
  int lists_per_head_ = 1;
  ResidentPrefixes::Lease shared_;  // on pages among the next that are not this set's own
  bool is_indexed_ = false;
  std::vector<uint32_t> pages_;  // of each part: those of list i from first_page_[i] on
  std::vector<uint32_t> staging_pages_;
  std::vector<uint32_t> first_page_;               // [list]
  std::vector<uint32_t> first_slot_;               // [list] of the part that it lies in
  std::vector<uint32_t> pool_slots_;               // [list]
  std::vector<bool> split_;                        // [list] each query head has a slot list of its own
  std::vector<bool> in_one_piece_;                 // [list] its pages lie one behind the other; not by position
  std::vector<std::vector<uint32_t>> slot_lists_;  // [list][lists_per_head] physical slots
  std::vector<uint32_t> streamed_slots_;           // of CommitStreamed
  std::vector<uint32_t> kept_;  // of each of them, sinks and selection: they stay until the next delta
  // Of the lists that attend everything: positions [s, pooled_end_) lie in the pool at their identity index.
  uint32_t pooled_end_ = 0;
};

}  // namespace winnow
