#include "inference_rank/memory/working_set.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "model/head_parts.h"

namespace winnow {
namespace {

bool IsByPosition(const SelectionSpec& spec, SlotOrder order) {
  return order == SlotOrder::kByPosition || IsDense(spec);
}

uint32_t ListPages(const KvLayout& layout, const SelectionSpec& spec, size_t list, uint32_t max_positions,
                   bool by_position) {
  if (by_position) return (max_positions + kSlotPageTokens - 1) / kSlotPageTokens;
  const uint32_t slots = spec.sink_tokens + wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens) +
                         PoolSlots(spec, list, max_positions, layout.group_size());
  return (slots + kSlotPageTokens - 1) / kSlotPageTokens;
}

uint32_t LargestOf(std::span<const uint32_t> values) {
  uint32_t largest = 0;
  for (const uint32_t value : values) largest = std::max(largest, value);
  return largest;
}

bool AllBelow(std::span<const uint32_t> values, uint32_t limit) {
  uint32_t others = 0;
  for (const uint32_t value : values) others |= value >= limit;
  return others == 0;
}

}  // namespace

uint32_t WorkingSet::PagesNeeded(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions, int parts,
                                 SlotOrder order) {
  const bool by_position = IsByPosition(spec, order);
  std::vector<uint32_t> pages(parts, 0);
  for (size_t list = 0; list < layout.num_lists(); ++list) {
    pages[PartOf(layout, list, parts)] += ListPages(layout, spec, list, max_positions, by_position);
  }
  return *std::max_element(pages.begin(), pages.end());
}

absl::StatusOr<WorkingSet> WorkingSet::Create(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec,
                                              uint32_t max_positions, uint32_t prompt_tokens, SlotOrder order,
                                              ResidentPrefixes::Lease prefix, std::optional<SlotPlacement> placement) {
  WINNOW_CHECK(slots.row_bytes() == layout.row_bytes());
  WorkingSet set(slots, layout, spec, max_positions, prompt_tokens, order);
  WINNOW_CHECK(prefix.num_columns() == 0 || (set.by_position_ && prefix.positions() <= max_positions));
  set.shared_ = std::move(prefix);
  const uint32_t needed = PagesNeeded(layout, spec, max_positions, slots.num_parts(), order);
  if (absl::Status taken = set.TakePages(needed, placement); !taken.ok()) {
    set.shared_ = {};
    return taken;
  }
  set.NotePieces();
  return set;
}

// Shared ones first in each list, then those of its own, column by column.
absl::Status WorkingSet::TakePages(uint32_t needed, const std::optional<SlotPlacement>& placement) {
  const std::vector<std::span<const uint32_t>> shared = shared_.pages();
  if (shared.empty() && (!placement.has_value() || placement->host_columns() == 0)) {
    WINNOW_ASSIGN_OR_RETURN(
        pages_, placement.has_value() ? slots_->Allocate(needed, SlotPlace::kFront) : slots_->Allocate(needed));
    return absl::OkStatus();
  }
  const size_t num_lists = lists_of_part(), per_list = needed / num_lists;
  const SlotPlacement spread = placement.value_or(SlotPlacement());
  const size_t first_own = shared.size(), host_begin = std::clamp<size_t>(spread.host_begin, first_own, per_list),
               host_end = std::clamp<size_t>(spread.host_end, host_begin, per_list);
  const auto host_pages = static_cast<uint32_t>(num_lists * (host_end - host_begin)),
             staging = static_cast<uint32_t>(num_lists * spread.staging_pages),
             own_front = static_cast<uint32_t>(num_lists * (per_list - first_own)) - host_pages;
  std::vector<uint32_t> front, host;
  if (placement.has_value()) {
    WINNOW_ASSIGN_OR_RETURN(front, slots_->Allocate(own_front + staging, SlotPlace::kFront));
    absl::StatusOr<std::vector<uint32_t>> taken = slots_->Allocate(host_pages, SlotPlace::kHostBehindGpu);
    if (!taken.ok()) {
      slots_->Free(front);
      return taken.status();
    }
    host = *std::move(taken);
  } else {
    WINNOW_ASSIGN_OR_RETURN(front, slots_->Allocate(own_front));
  }
  staging_pages_.assign(front.end() - staging, front.end());
  auto next_front = front.begin(), next_host = host.begin();
  pages_.reserve(needed);
  for (size_t list = 0; list < num_lists; ++list) {
    for (const std::span<const uint32_t> column : shared) pages_.push_back(column[list]);
    for (size_t column = first_own; column < per_list; ++column) {
      const bool in_host = column >= host_begin && column < host_end;
      pages_.push_back(in_host ? *next_host++ : *next_front++);
    }
  }
  return absl::OkStatus();
}

void WorkingSet::NotePieces() {
  if (by_position_) return;
  for (size_t list = 0; list < num_lists(); ++list) {
    const uint32_t* const pages = &pages_[first_page_[list]];
    const uint32_t slots = sink_tokens_ + ring_tokens_ + pool_slots_[list];
    bool in_one_piece = true;
    for (uint32_t i = 0; i * kSlotPageTokens < slots; ++i) in_one_piece &= pages[i] == pages[0] + i;
    in_one_piece_[list] = in_one_piece;
  }
}

void WorkingSet::Share(ResidentPrefixes::Lease prefix) {
  const std::vector<std::span<const uint32_t>> columns = prefix.pages();
  WINNOW_CHECK(by_position_ && prefix.positions() <= max_positions_);
  std::vector<uint32_t> given_back;
  for (size_t column = shared_.num_columns(); column < columns.size(); ++column) {
    for (size_t list = 0; list < lists_of_part(); ++list) {
      uint32_t& page = pages_[list * pages_of_list() + column];
      if (page != columns[column][list]) given_back.push_back(page);
      page = columns[column][list];
    }
  }
  slots_->Free(given_back);
  if (prefix.num_columns() <= shared_.num_columns()) return;
  shared_ = std::move(prefix);
}

void WorkingSet::CopyShared(int layer, uint32_t count, const PrefillArena& arena) const {
  WINNOW_CHECK(count <= shared_positions());
  CopyByPages(layer, 0, count, [&](int head, uint32_t first, std::byte* slots) {
    return BlockCopy{.to = arena.row(layer, head, first), .from = slots};
  });
}

void WorkingSet::CopyPrompt(int layer, uint32_t count, const PrefillArena& arena) const {
  WINNOW_CHECK(by_position_);
  CopyByPages(layer, shared_positions(), count, [&](int head, uint32_t first, std::byte* slots) {
    return BlockCopy{.to = slots, .from = arena.row(layer, head, first)};
  });
}

// A long prompt has millions of rows. All heads go together: one launch for each part.
template <typename CopyOf>
void WorkingSet::CopyByPages(int layer, uint32_t begin, uint32_t end, CopyOf copy_of) const {
  struct Blocks {
    std::vector<BlockCopy> pages, last;
  };
  std::vector<Blocks> of_parts(slots_->num_parts());
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    const size_t list = List(layer, head);
    Blocks& blocks = of_parts[PartOf(layout_, list, slots_->num_parts())];
    for (uint32_t first = begin; first < end; first += kSlotPageTokens) {
      (end - first >= kSlotPageTokens ? blocks.pages : blocks.last)
          .push_back(copy_of(head, first, slots_->row(PhysicalSlot(list, first))));
    }
  }
  for (int part = 0; part < slots_->num_parts(); ++part) {
    slots_->CopyBeside(part, of_parts[part].pages, kSlotPageTokens * layout_.row_bytes());
    slots_->CopyBeside(part, of_parts[part].last, end % kSlotPageTokens * layout_.row_bytes());
  }
}

WorkingSet::WorkingSet(SlotPool& slots, const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions,
                       uint32_t prompt_tokens, SlotOrder order)
    : slots_(&slots),
      layout_(layout),
      spec_(spec),
      by_position_(IsByPosition(spec, order)),
      max_positions_(max_positions),
      sink_tokens_(spec.sink_tokens),
      ring_tokens_(wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens)),
      prompt_tokens_(prompt_tokens),
      lists_per_head_(ListsPerKvHead(spec, layout.group_size())),
      split_(layout.num_lists(), false),
      in_one_piece_(layout.num_lists(), false),
      slot_lists_(layout.num_lists() * lists_per_head_),
      kept_(slot_lists_.size(), spec.sink_tokens) {
  std::vector<uint32_t> pages(slots.num_parts(), 0);
  for (size_t list = 0; list < layout.num_lists(); ++list) {
    const int part = PartOf(layout, list, slots.num_parts());
    first_page_.push_back(pages[part]);
    first_slot_.push_back(slots.first_slot(part));
    pages[part] += ListPages(layout, spec, list, max_positions, by_position_);
    pool_slots_.push_back(PoolSlots(spec, list, max_positions, layout.group_size()));
    total_pool_slots_ += pool_slots_[list];
    if (by_position_) continue;  // a step on the device reads no such lists
    const uint32_t most = sink_tokens_ + std::min(BudgetCeiling(spec, list), pool_slots_[list]) + ring_tokens_;
    for (int i = 0; i < lists_per_head_; ++i) slot_lists_[list * lists_per_head_ + i].reserve(most);
  }
  pooled_end_ = sink_tokens_;
}

WorkingSet::WorkingSet(WorkingSet&& other) noexcept = default;

WorkingSet::~WorkingSet() {
  slots_->Free(staging_pages_);
  if (pages_.empty()) return;
  if (shared_.num_columns() == 0) {
    slots_->Free(pages_);
    return;
  }
  std::vector<uint32_t> own;
  const size_t per_list = pages_of_list();
  for (size_t first = 0; first < pages_.size(); first += per_list) {
    const auto list = pages_.begin() + static_cast<ptrdiff_t>(first);
    own.insert(own.end(), list + shared_.num_columns(), list + static_cast<ptrdiff_t>(per_list));
  }
  slots_->Free(own);
}

SlotPages WorkingSet::pages_held() const {
  const auto host = std::count_if(pages_.begin(), pages_.end(),
                                  [&](uint32_t page) { return slots_->place_of(page) == SlotPlace::kHostBehindGpu; });
  return {.front = static_cast<uint32_t>(pages_.size() + staging_pages_.size() - static_cast<size_t>(host)),
          .host = static_cast<uint32_t>(host)};
}

uint32_t WorkingSet::pool_slots(const KvShard& shard) const {
  uint32_t slots = 0;
  for (int layer = shard.first_layer; layer <= shard.last_layer(); ++layer) {
    const size_t first = List(layer, shard.first_kv_head);
    for (size_t list = first; list < first + shard.num_kv_heads; ++list) slots += pool_slots_[list];
  }
  return slots;
}

std::vector<uint32_t> WorkingSet::PagesOfLists(const KvShard& shard, uint32_t pages_per_list) const {
  std::vector<uint32_t> pages;
  for (int layer = shard.first_layer; layer <= shard.last_layer(); ++layer) {
    const size_t first = List(layer, shard.first_kv_head);
    for (size_t list = first; list < first + shard.num_kv_heads; ++list) {
      const uint32_t slots = by_position_ ? max_positions_ : sink_tokens_ + ring_tokens_ + pool_slots_[list];
      const uint32_t last = (slots - 1) / kSlotPageTokens;
      for (uint32_t i = 0; i < pages_per_list; ++i) pages.push_back(pages_[first_page_[list] + std::min(i, last)]);
    }
  }
  return pages;
}

void WorkingSet::WriteRow(int layer, int kv_head, uint32_t position, const void* row) {
  const size_t list = List(layer, kv_head);
  slots_->Write(RingSlot(list, position), row);
  if (position < sink_tokens_ && !by_position_) slots_->Write(PhysicalSlot(list, position), row);
}

void WorkingSet::LoadRows(int layer, int kv_head, uint32_t first, uint32_t count, const std::byte* rows,
                          uint32_t next_position, RowsIn rows_in) {
  const size_t list = List(layer, kv_head);
  const size_t row_bytes = layout_.row_bytes();
  const uint32_t ring_first = next_position > ring_tokens_ ? next_position - ring_tokens_ : 0;
  const bool dense = next_position > 0 && AttendsEverything(list, next_position - 1);
  const uint32_t pooled_end = dense ? PooledEndOf(next_position - 1) : sink_tokens_;
  const auto load = [&](uint32_t slot, const std::byte* row) {
    rows_in == RowsIn::kHost ? slots_->Write(slot, row) : slots_->Copy(slot, row);
  };
  const uint32_t shared = shared_positions();
  for (uint32_t i = shared > first ? shared - first : 0; i < count; ++i) {
    const uint32_t position = first + i;
    const std::byte* row = rows + i * row_bytes;
    if (by_position_) {
      load(PhysicalSlot(list, position), row);
      continue;
    }
    if (position < sink_tokens_) load(PhysicalSlot(list, position), row);
    if (position >= sink_tokens_ && position < pooled_end) load(PoolSlot(list, position - sink_tokens_), row);
    if (position >= ring_first) load(RingSlot(list, position), row);
  }
}

void WorkingSet::FinishLoad(uint32_t next_position) {
  attach_position_ = next_position;
  pooled_end_ = next_position > 0 ? PooledEndOf(next_position - 1) : sink_tokens_;
  for (std::vector<uint32_t>& slots : slot_lists_) slots.clear();
  split_.assign(split_.size(), false);
  std::fill(kept_.begin(), kept_.end(), sink_tokens_);
}

void WorkingSet::AppendSinks(size_t list, std::vector<uint32_t>& slots) const {
  for (uint32_t i = static_cast<uint32_t>(slots.size()); i < sink_tokens_; ++i) slots.push_back(PhysicalSlot(list, i));
}

void WorkingSet::AppendRecent(size_t list, uint32_t recent_start, uint32_t position,
                              std::vector<uint32_t>& slots) const {
  for (uint32_t p = recent_start; p <= position; ++p) slots.push_back(RingSlot(list, p));
}

void WorkingSet::AppendPool(size_t list, std::span<const uint32_t> indices, std::vector<uint32_t>& slots) const {
  const size_t first = slots.size();
  slots.resize(first + indices.size());
  uint32_t* const out = slots.data() + first;
  // As PoolSlot, without looking up what is the list's for each of thousands of rows.
  const uint32_t first_index = pool_base();
  const uint32_t* const pages = &pages_[first_page_[list]];
  const uint32_t first_slot = first_slot_[list];
  if (in_one_piece_[list]) {
    const uint32_t first_row = first_slot + pages[0] * kSlotPageTokens + first_index;
    for (size_t i = 0; i < indices.size(); ++i) out[i] = first_row + indices[i];
    return;
  }
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint32_t logical = first_index + indices[i];
    out[i] = first_slot + pages[logical / kSlotPageTokens] * kSlotPageTokens + logical % kSlotPageTokens;
  }
}

void WorkingSet::Advance(uint32_t position) {
  for (size_t list = 0; list < num_lists(); ++list) {
    if (by_position_) {
      AdvanceByPosition(list, position);
    } else if (AttendsEverything(list, position)) {
      AdvanceDense(list, position);
    } else if (!NeedsDelta(list, position)) {
      AdvanceKept(list, position);
    }
  }
  pooled_end_ = std::max(pooled_end_, PooledEndOf(position));
}

// The slots of a position never change, so that the list only grows.
void WorkingSet::AdvanceByPosition(size_t list, uint32_t position) {
  WINNOW_CHECK(AttendsEverything(list, position));
  std::vector<uint32_t>& slots = SlotListsOf(list)[0];
  slots.resize(std::min<size_t>(slots.size(), position + 1));
  while (slots.size() <= position) slots.push_back(PhysicalSlot(list, static_cast<uint32_t>(slots.size())));
}

void WorkingSet::AdvanceDense(size_t list, uint32_t position) {
  const uint32_t recent_start = PooledEndOf(position);
  const uint32_t sinks = std::min(sink_tokens_, position + 1);
  WINNOW_CHECK(!split_[list]);
  std::vector<uint32_t>& slots = SlotListsOf(list)[0];
  for (uint32_t p = pooled_end_; p < recent_start; ++p) {
    slots_->Copy(PoolSlot(list, p - sink_tokens_), slots_->row(RingSlot(list, p)));
  }
  // The list up to the recent window only grows, so what an earlier step wrote is kept.
  const size_t kept = std::min<size_t>(slots.size(), sinks == sink_tokens_ ? sinks + (pooled_end_ - sink_tokens_) : 0);
  slots.resize(kept);
  for (uint32_t i = static_cast<uint32_t>(slots.size()); i < sinks; ++i) slots.push_back(PhysicalSlot(list, i));
  for (uint32_t i = static_cast<uint32_t>(slots.size()) - sinks; i + sink_tokens_ < recent_start; ++i) {
    slots.push_back(PoolSlot(list, i));
  }
  AppendRecent(list, std::max(recent_start, sinks), position, slots);
}

void WorkingSet::AdvanceKept(size_t list, uint32_t position) {
  const uint32_t* kept = &kept_[list * lists_per_head_];
  for (std::vector<uint32_t>& slots : SlotListsOf(list)) {
    slots.resize(std::min<size_t>(slots.size(), *kept++));
    AppendSinks(list, slots);
    AppendRecent(list, WindowStartOf(position), position, slots);
  }
}

absl::Status WorkingSet::SetSelection(int layer, int kv_head, uint32_t position, std::span<const uint32_t> pool_indices,
                                      std::span<const QueryHeadMask> members) {
  const size_t list = List(layer, kv_head);
  if (members.size() != (lists_per_head_ > 1 ? pool_indices.size() : 0)) {
    return absl::InvalidArgumentError(absl::StrCat(members.size(), " masks of query heads with a selection of ",
                                                   pool_indices.size(), " rows for ", lists_per_head_, " lists"));
  }
  for (const QueryHeadMask mask : members) {
    if (mask == 0 || (mask & ~AllQueryHeads(lists_per_head_)) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("mask ", mask, " of query heads, of which there are ", lists_per_head_));
    }
  }
  if (!AllBelow(pool_indices, pool_slots_[list])) {
    return absl::InvalidArgumentError(
        absl::StrCat("selected pool index ", LargestOf(pool_indices), " is outside the grant of ", pool_slots_[list]));
  }
  split_[list] = !members.empty();
  const std::span<std::vector<uint32_t>> slot_lists = SlotListsOf(list);
  for (size_t head = 0; head < slot_lists.size(); ++head) {
    std::vector<uint32_t>& slots = slot_lists[head];
    slots.clear();
    AppendSinks(list, slots);
    if (members.empty()) {
      AppendPool(list, pool_indices, slots);
    } else {
      for (size_t i = 0; i < pool_indices.size(); ++i) {
        if ((members[i] >> head & 1) != 0) slots.push_back(PoolSlot(list, pool_indices[i]));
      }
    }
    kept_[list * lists_per_head_ + head] = static_cast<uint32_t>(slots.size());
    AppendRecent(list, WindowStartOf(position), position, slots);
    // Attention reads something, also where a selection that failed is empty.
    if (slots.empty()) slots.push_back(RingSlot(list, position));
  }
  return absl::OkStatus();
}

absl::Status WorkingSet::CommitLocal(int layer, int kv_head, uint32_t position, std::span<const wire::LocalRow> local) {
  const size_t list = List(layer, kv_head);
  for (const wire::LocalRow& row : local) {
    if (row.pool_index >= pool_slots_[list] || row.position > position || row.position + ring_tokens_ <= position) {
      return absl::InvalidArgumentError(absl::StrCat("local row of position ", row.position, " to pool index ",
                                                     row.pool_index, " is outside the ring or the grant of ",
                                                     pool_slots_[list]));
    }
    slots_->Copy(PoolSlot(list, row.pool_index), slots_->row(RingSlot(list, row.position)));
  }
  return absl::OkStatus();
}

absl::Status WorkingSet::CommitStreamed(int layer, int kv_head, std::span<const uint32_t> pool_indices,
                                        const std::byte* rows, const std::shared_ptr<const void>& keep) {
  const size_t list = List(layer, kv_head);
  if (!AllBelow(pool_indices, pool_slots_[list])) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool index ", LargestOf(pool_indices), " is outside the grant of ", pool_slots_[list]));
  }
  streamed_slots_.clear();
  AppendPool(list, pool_indices, streamed_slots_);
  slots_->WriteRows(streamed_slots_, rows, keep);
  return absl::OkStatus();
}

}  // namespace winnow
