#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/kv_layout.h"
#include "kernels/device/params/exchange.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// The slots of a batch whose rows all have lists of one shape: what a decode graph attends to.
//
// A list whose slots hold every row of its sequence, by position, attends to all of them (dense) or, in place, to the
// sinks, the rows that its selection names and the recent window. Any other holds, each part beginning at a page:
// sinks, a pool for what is selected, and a ring for the recent window.
struct DecodeSlotShape {
  KvLayout layout;  // dtype of the slots' rows: bf16, fp8, int8 or int4
  int max_rows = 0;
  int hidden_size = 0;
  uint32_t dense_tokens = 0;  // of a sequence, at most, where slots hold all of it; 0: they do not
  uint32_t sinks = 0;
  uint32_t pool_slots = 0;
  uint32_t max_budget = 0;  // of a selection, <= pool_slots where there is a pool
  uint32_t recent_tokens = 0;
  uint32_t ring_tokens = 0;     // 0: what recent_tokens needs
  int lists_per_kv_head = 1;    // selections: one, or one for each query head; more than one in place alone
  uint32_t reuse_interval = 1;  // positions that share a selection
  uint32_t staging_pages = 0;   // of a list that holds everything, behind its pages: for copies of selected rows
  bool as_working_set = false;  // parts lie as in a WorkingSet: sinks, ring, pool, without gaps

  bool holds_everything() const { return dense_tokens > 0; }
  bool is_dense() const { return holds_everything() && max_budget == 0; }
  uint32_t pool_base() const;
  uint32_t ring_base() const;
  uint32_t ring_capacity() const;  // ring_tokens of the lists
  uint32_t pages_per_list() const;
  // Local index of the first staging slot.
  uint32_t staging_base() const { return (pages_per_list() - staging_pages) * kSlotPageTokens; }
  uint32_t max_list_rows() const;  // longest list there can be
  size_t num_lists() const { return layout.num_lists() * static_cast<size_t>(max_rows); }
  size_t num_selections() const { return num_lists() * lists_per_kv_head; }
  size_t num_slots() const { return num_lists() * pages_per_list() * kSlotPageTokens; }
  // Of a slot, without the scales of 8 and 4 bits: these lie in memory of their own.
  size_t row_bytes() const { return layout.row.scales_offset_bytes(layout.head_dim, layout.dtype); }
  size_t slot_bytes() const;  // of all slots, with their scales
  device::ExchangeShape exchange() const { return {layout, max_rows, hidden_size, max_budget, lists_per_kv_head}; }
};

// Takes all memory at start, pages in random order, as a rank that has served for a while has them.
class DecodeSlots {
 public:
  static size_t Bytes(const DecodeSlotShape& shape);
  static absl::StatusOr<std::unique_ptr<DecodeSlots>> Create(device::Device& device, const DecodeSlotShape& shape,
                                                             uint64_t page_seed);

  // Over slots that are somebody else's, bf16 or int8, with lists as working sets have them (as_working_set, or
  // holds_everything for those by position), whose pages SetRow names. `scales`: of slots of int8.
  static size_t BytesOver(const DecodeSlotShape& shape);
  static absl::StatusOr<std::unique_ptr<DecodeSlots>> CreateOver(device::Device& device, const DecodeSlotShape& shape,
                                                                 void* slot_pool, float* scales = nullptr);
  // A new sequence in this row, with nothing selected: slot pages [num_lists of a sequence][pages_per_list]. Enqueued;
  // `pages` is read before this returns. The graph forgets a row that sat out a step: this brings it back. `stages`:
  // what its lists select lies at indices of staging slots, and not of positions.
  void SetRow(int row, std::span<const uint32_t> pages, device::Stream stream, bool stages = false);

  const DecodeSlotShape& shape() const { return shape_; }
  // The region that cache ranks map, with the lists in it, and flags of one cache rank.
  const device::InferenceInbox& inbox() const { return inbox_; }
  device::DeviceMemory& inbox_memory() const { return *inbox_memory_; }
  void* slot_pool() const { return inbox_.slot_pool; }
  device::DeviceMemory& slot_memory() const { return *slot_memory_; }
  float* scales() const { return scales_; }  // [num_slots][2]; null for bf16
  const uint32_t* pages() const { return pages_; }
  // The same in host memory: list i's begins at i * pages_per_list.
  const std::vector<uint32_t>& host_pages() const { return host_pages_; }
  size_t list(int layer, int row, int kv_head) const {
    return (static_cast<size_t>(layer) * shape_.max_rows + row) * shape_.layout.num_kv_heads + kv_head;
  }
  // The first of that list's entries in inbox().lists.
  size_t selection(int layer, int row, int kv_head) const {
    return list(layer, row, kv_head) * shape_.lists_per_kv_head;
  }
  // Blocks of kBlockTokens rows of a list whose slots hold everything, as numbers in the slot pool, in position order.
  std::vector<uint32_t> BlocksOf(size_t list) const;
  // Selects the same rows in every list: positions [begin, begin + count), which lie anywhere in the pool.
  absl::Status SelectRange(uint32_t begin, uint32_t count, uint64_t pool_seed);
  // Lets the recent part of every list begin at a position, for RecentWindow::kGrowing.
  absl::Status SetRecentBegin(uint32_t position);
  // Empties all lists: no selection, the recent part at 0.
  absl::Status Reset();
  const uint32_t* selected_positions() const { return selected_positions_; }  // beside inbox().pool_indices

 private:
  DecodeSlots(device::Device* device, const DecodeSlotShape& shape) : device_(device), shape_(shape) {}
  size_t CarveTables(void* region);
  absl::Status UploadLists();
  static absl::StatusOr<std::unique_ptr<DecodeSlots>> Make(device::Device& device, const DecodeSlotShape& shape,
                                                           std::unique_ptr<device::DeviceMemory> slot_memory,
                                                           void* slot_pool, float* scales, std::vector<uint32_t> pages);

  device::Device* const device_;  // null only to count
  device::Stream stream_ = nullptr;
  const DecodeSlotShape shape_;
  std::unique_ptr<device::DeviceMemory> slot_memory_;  // null: somebody else's; scales of narrow rows lie behind
  std::unique_ptr<device::DeviceMemory> inbox_memory_, flags_memory_;
  std::unique_ptr<device::DeviceMemory> table_memory_;
  device::InferenceInbox inbox_;
  uint32_t* pages_ = nullptr;
  uint32_t* selected_positions_ = nullptr;
  float* scales_ = nullptr;
  std::vector<uint32_t> host_pages_;
  std::vector<device::AttentionList> host_lists_;
};

}  // namespace winnow
