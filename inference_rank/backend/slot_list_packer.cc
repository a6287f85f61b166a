#include "inference_rank/backend/slot_list_packer.h"

#include <algorithm>

#include "common/base/check.h"

namespace winnow {

SlotListPacker::SlotListPacker(int num_query_heads, int num_kv_heads, uint32_t first_slot,
                               std::span<device::AttentionList> lists, std::span<uint32_t> selected)
    : num_query_heads_(num_query_heads),
      group_(num_query_heads / num_kv_heads),
      first_slot_(first_slot),
      list_space_(lists),
      selected_space_(selected) {}

void SlotListPacker::Begin(const SlotLists& lists, int num_rows) {
  WINNOW_CHECK(lists.num_heads() == static_cast<size_t>(num_rows) * num_query_heads_);
  input_ = &lists;
  num_rows_ = num_rows;
  next_row_ = 0;
  next_list_ = 0;
}

SlotListPacker::RowLists SlotListPacker::Look(size_t first) const {
  RowLists row{.end = first};
  for (uint32_t heads = 0; heads < num_query_heads_; ++row.end) {
    const uint32_t of_list = input_->heads()[row.end];
    WINNOW_CHECK(of_list == group_ || of_list == 1);
    row.per_query_head |= of_list != group_;
    row.selected += input_->counts()[row.end];
    heads += of_list;
  }
  return row;
}

void SlotListPacker::AddRow(const RowLists& row) {
  if (launches_.empty() || launches_.back().per_query_head != row.per_query_head) {
    launches_.push_back({.first_row = next_row_, .per_query_head = row.per_query_head, .first_list = num_lists_});
  }
  AttentionLaunch& launch = launches_.back();
  ++launch.num_rows;
  for (; next_list_ < row.end; ++next_list_) {
    const std::span<const uint32_t> slots = input_->slots(next_list_);
    const auto count = static_cast<uint32_t>(slots.size());
    device::AttentionList list{};
    list.selected_first = num_selected_;
    list.selected_count = count;
    list.ring_tokens = 1;
    const uint32_t copies = row.per_query_head ? input_->heads()[next_list_] : 1;
    std::fill_n(list_space_.begin() + num_lists_, copies, list);
    num_lists_ += copies;
    uint32_t* const selected = selected_space_.data() + num_selected_;
    if (first_slot_ == 0) {
      std::copy(slots.begin(), slots.end(), selected);
    } else {
      std::transform(slots.begin(), slots.end(), selected,
                     [first = first_slot_](uint32_t slot) { return slot - first; });
    }
    num_selected_ += count;
    launch.max_count = std::max(launch.max_count, count);
  }
  ++next_row_;
}

bool SlotListPacker::NextPack() {
  launches_.clear();
  num_lists_ = num_selected_ = 0;
  while (next_row_ < num_rows_) {
    const RowLists row = Look(next_list_);
    const bool fits =
        num_lists_ + num_query_heads_ <= list_space_.size() && num_selected_ + row.selected <= selected_space_.size();
    if (!fits) {
      WINNOW_CHECK(!launches_.empty());
      break;
    }
    AddRow(row);
  }
  return !launches_.empty();
}

}  // namespace winnow
