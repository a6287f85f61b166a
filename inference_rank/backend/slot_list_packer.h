#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/params/attention.h"
#include "model/forward.h"

namespace winnow {

// Rows of a step that one launch of attention serves: in one launch a list belongs to a kv head, whose query heads
// share it, in another to a query head alone. Which of them is a property of the row, so that its bits do not depend on
// the other rows.
struct AttentionLaunch {
  int first_row = 0;
  int num_rows = 0;
  bool per_query_head = false;
  uint32_t first_list = 0;
  uint32_t max_count = 0;
};

// Turns the slot lists of a step's layer into what the GPU's attention reads, in arrays of fixed size: slots are
// selections from a page table that maps every page to itself. What does not fit comes in further packs.
class SlotListPacker {
 public:
  // `lists` [max_lists] and `selected` [max_selected] are the caller's. A row's lists must fit. Slots are numbered on
  // the GPU from `first_slot` on.
  SlotListPacker(int num_query_heads, int num_kv_heads, uint32_t first_slot, std::span<device::AttentionList> lists,
                 std::span<uint32_t> selected);

  // Begins with the lists of a layer for `num_rows` rows, which stay the caller's until the last pack.
  void Begin(const SlotLists& lists, int num_rows);
  // Packs the next rows; false when all have been packed.
  bool NextPack();
  // True when the last pack was the layer's last.
  bool done() const { return next_row_ == num_rows_; }

  std::span<const AttentionLaunch> launches() const { return launches_; }
  uint32_t num_lists() const { return num_lists_; }
  uint32_t num_selected() const { return num_selected_; }

 private:
  // Lists of the row that begins at input list `first`, and whether query heads have their own.
  struct RowLists {
    size_t end = 0;
    bool per_query_head = false;
    size_t selected = 0;
  };
  RowLists Look(size_t first) const;
  void AddRow(const RowLists& row);

  const uint32_t num_query_heads_;
  const uint32_t group_;
  const uint32_t first_slot_;
  const std::span<device::AttentionList> list_space_;
  const std::span<uint32_t> selected_space_;
  const SlotLists* input_ = nullptr;
  int num_rows_ = 0;
  int next_row_ = 0;
  size_t next_list_ = 0;
  std::vector<AttentionLaunch> launches_;
  uint32_t num_lists_ = 0;
  uint32_t num_selected_ = 0;
};

}  // namespace winnow
