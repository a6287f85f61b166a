#include "inference_rank/working_set.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace winnow {
namespace {

uint32_t PagesPerList(const SelectionSpec& spec, uint32_t max_positions) {
  const uint32_t slots = spec.sink_tokens + wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens) +
                         WorkingSet::PoolSlots(spec, max_positions);
  return (slots + kSlotPageTokens - 1) / kSlotPageTokens;
}

}  // namespace

uint32_t WorkingSet::PoolSlots(const SelectionSpec& spec, uint32_t max_positions) {
  // What can leave the recent window; a pool never needs more.
  const uint32_t most = max_positions > spec.sink_tokens ? max_positions - spec.sink_tokens : 0;
  if (spec.predictor == Predictor::kDense || spec.budget_tokens == kUnlimitedBudget) return most;
  // A head that the guard let grow selects up to its ceiling at once.
  const double pool =
      std::max<double>(std::ceil(static_cast<double>(spec.budget_tokens) * spec.pool_factor), BudgetCeiling(spec, 0));
  return pool < most ? static_cast<uint32_t>(pool) : most;
}

uint32_t WorkingSet::PagesNeeded(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions) {
  return PagesPerList(spec, max_positions) * layout.num_layers * layout.num_kv_heads;
}

absl::StatusOr<WorkingSet> WorkingSet::Create(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec,
                                              uint32_t max_positions) {
  WINNOW_CHECK(slots.row_bytes() == layout.row_bytes());
  WorkingSet set(slots, layout, spec, max_positions);
  WINNOW_ASSIGN_OR_RETURN(set.pages_, slots.Allocate(PagesNeeded(layout, spec, max_positions)));
  return set;
}

WorkingSet::WorkingSet(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions)
    : slots_(&slots),
      layout_(layout),
      spec_(spec),
      sink_tokens_(spec.sink_tokens),
      recent_tokens_(spec.recent_tokens),
      ring_tokens_(wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens)),
      pool_slots_(PoolSlots(spec, max_positions)),
      pages_per_list_(PagesPerList(spec, max_positions)),
      lists_(static_cast<size_t>(layout.num_layers) * layout.num_kv_heads) {
  const uint32_t selected = std::min(BudgetCeiling(spec, 0), pool_slots_);
  for (std::vector<uint32_t>& list : lists_) list.reserve(sink_tokens_ + selected + ring_tokens_);
  pooled_end_ = sink_tokens_;
}

WorkingSet::WorkingSet(WorkingSet&& other) noexcept = default;

WorkingSet::~WorkingSet() {
  if (!pages_.empty()) slots_->Free(pages_);
}

void WorkingSet::WriteRow(int layer, int kv_head, uint32_t position, const void* row) {
  const size_t list = List(layer, kv_head);
  std::memcpy(slots_->row(RingSlot(list, position)), row, layout_.row_bytes());
  if (position < sink_tokens_) std::memcpy(slots_->row(PhysicalSlot(list, position)), row, layout_.row_bytes());
}

void WorkingSet::LoadRows(int layer, int kv_head, uint32_t first, uint32_t count, const std::byte* rows,
                          uint32_t next_position) {
  const size_t list = List(layer, kv_head);
  const size_t row_bytes = layout_.row_bytes();
  const uint32_t ring_first = next_position > ring_tokens_ ? next_position - ring_tokens_ : 0;
  const bool dense = next_position > 0 && AttendsEverything(next_position - 1, spec_, kBlockTokens);
  const uint32_t pooled_end = dense ? RecentStartOf(next_position - 1) : sink_tokens_;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = first + i;
    const std::byte* row = rows + i * row_bytes;
    if (position < sink_tokens_) std::memcpy(slots_->row(PhysicalSlot(list, position)), row, row_bytes);
    if (position >= sink_tokens_ && position < pooled_end) {
      std::memcpy(slots_->row(PoolSlot(list, position - sink_tokens_)), row, row_bytes);
    }
    if (position >= ring_first) std::memcpy(slots_->row(RingSlot(list, position)), row, row_bytes);
  }
}

void WorkingSet::FinishLoad(uint32_t next_position) {
  const bool dense = next_position > 0 && AttendsEverything(next_position - 1, spec_, kBlockTokens);
  pooled_end_ = dense ? RecentStartOf(next_position - 1) : sink_tokens_;
  for (size_t list = 0; list < lists_.size(); ++list) lists_[list].clear();
}

void WorkingSet::AppendRecent(size_t list, uint32_t recent_start, uint32_t position) {
  for (uint32_t p = recent_start; p <= position; ++p) lists_[list].push_back(RingSlot(list, p));
}

void WorkingSet::AdvanceDense(uint32_t position) {
  const uint32_t recent_start = RecentStartOf(position);
  const uint32_t old_end = pooled_end_;
  const uint32_t sinks = std::min(sink_tokens_, position + 1);
  for (size_t list = 0; list < lists_.size(); ++list) {
    std::vector<uint32_t>& slots = lists_[list];
    for (uint32_t p = old_end; p < recent_start; ++p) {
      std::memcpy(slots_->row(PoolSlot(list, p - sink_tokens_)), slots_->row(RingSlot(list, p)), layout_.row_bytes());
    }
    // The list up to the recent window only grows, so what an earlier step wrote is kept.
    const size_t kept = std::min<size_t>(slots.size(), sinks == sink_tokens_ ? sinks + (old_end - sink_tokens_) : 0);
    slots.resize(kept);
    for (uint32_t i = static_cast<uint32_t>(slots.size()); i < sinks; ++i) slots.push_back(PhysicalSlot(list, i));
    for (uint32_t i = static_cast<uint32_t>(slots.size()) - sinks; i + sink_tokens_ < recent_start; ++i) {
      slots.push_back(PoolSlot(list, i));
    }
    AppendRecent(list, std::max(recent_start, sinks), position);
  }
  pooled_end_ = std::max(old_end, recent_start);
}

absl::Status WorkingSet::SetSelection(int layer, int kv_head, uint32_t position,
                                      std::span<const uint32_t> pool_indices) {
  const size_t list = List(layer, kv_head);
  std::vector<uint32_t>& slots = lists_[list];
  slots.clear();
  for (uint32_t i = 0; i < sink_tokens_; ++i) slots.push_back(PhysicalSlot(list, i));
  for (uint32_t index : pool_indices) {
    if (index >= pool_slots_) {
      return absl::InvalidArgumentError(
          absl::StrCat("selected pool index ", index, " is outside the grant of ", pool_slots_));
    }
    slots.push_back(PoolSlot(list, index));
  }
  AppendRecent(list, RecentStartOf(position), position);
  return absl::OkStatus();
}

absl::Status WorkingSet::CommitLocal(int layer, int kv_head, uint32_t position, std::span<const wire::LocalRow> local) {
  const size_t list = List(layer, kv_head);
  for (const wire::LocalRow& row : local) {
    if (row.pool_index >= pool_slots_ || row.position > position || row.position + ring_tokens_ <= position) {
      return absl::InvalidArgumentError(absl::StrCat("local row of position ", row.position, " to pool index ",
                                                     row.pool_index, " is outside the ring or the grant of ",
                                                     pool_slots_));
    }
    std::memcpy(slots_->row(PoolSlot(list, row.pool_index)), slots_->row(RingSlot(list, row.position)),
                layout_.row_bytes());
  }
  return absl::OkStatus();
}

absl::Status WorkingSet::CommitStreamed(int layer, int kv_head, std::span<const uint32_t> pool_indices,
                                        const std::byte* rows) {
  const size_t list = List(layer, kv_head);
  const size_t row_bytes = layout_.row_bytes();
  for (size_t i = 0; i < pool_indices.size(); ++i) {
    if (pool_indices[i] >= pool_slots_) {
      return absl::InvalidArgumentError(
          absl::StrCat("pool index ", pool_indices[i], " is outside the grant of ", pool_slots_));
    }
    std::memcpy(slots_->row(PoolSlot(list, pool_indices[i])), rows + i * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace winnow
