#include "inference_rank/memory/slot_placement.h"

#include <algorithm>
#include <cmath>

namespace winnow {
namespace {

uint32_t PagesOf(uint32_t slots) {
  return (slots + kSlotPageTokens - 1) / kSlotPageTokens;
}

uint32_t StagingSlots(const SelectionSpec& spec, size_t num_lists, const SlotTiers& tiers) {
  const uint32_t budget = GreatestHeadBudget(spec, num_lists);
  const double wanted = std::ceil(static_cast<double>(budget) * std::max(1.0, static_cast<double>(spec.pool_factor)));
  return static_cast<uint32_t>(std::min<double>(wanted, tiers.staging_slots));
}

}  // namespace

bool SlotDemand::FitsIn(const SlotPages& free, uint32_t shared) const {
  // Shared pages may lie in the host's memory: then the sequence stages although its own would all be in front.
  const uint32_t staging = shared > 0 ? staging_pages : 0;
  if (pages - std::min(shared, pages) + staging <= free.front) return true;
  if (!may_spread()) return false;
  // Of the shared ones, those of the first columns may be among spread.front: they are not counted off.
  return free.Hold({.front = spread.front, .host = spread.host - std::min(shared, spread.host)});
}

bool SlotDemand::LeavesRoomToStage(const SlotPages& free) const {
  if (!may_spread()) return true;
  const uint64_t reserved = (uint64_t{free.host} * spread.front + spread.host - 1) / spread.host;
  return pages + reserved <= free.front;
}

bool ReadsEveryRow(const SelectionSpec& spec, uint32_t prompt_tokens) {
  if (IsDense(spec) || prompt_tokens < spec.dense_below_tokens) return true;
  const bool reads_keys =
      spec.scorer == Scorer::kToken || spec.scorer == Scorer::kTwoStage || spec.policy == Policy::kMass;
  return reads_keys && spec.key_copy == KeyCopy::kNone;
}

SlotPlacement SpreadPlacement(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions,
                              uint32_t prompt_tokens, SlotOrder order, const SlotTiers& tiers) {
  const bool by_position = order == SlotOrder::kByPosition || IsDense(spec);
  const uint32_t columns = PagesOf(max_positions), lists = static_cast<uint32_t>(layout.num_lists());
  if (tiers.pages.host == 0 || !by_position) return {};
  const bool reads_all = ReadsEveryRow(spec, prompt_tokens);
  if (reads_all && uint64_t{columns} * lists <= tiers.pages.front) return {};
  const uint32_t window = spec.recent_tokens + kBlockTokens;
  SlotPlacement spread{.host_begin = PagesOf(spec.sink_tokens),
                       .host_end = (prompt_tokens - std::min(prompt_tokens, window)) / kSlotPageTokens};
  if (!reads_all) spread.staging_pages = PagesOf(StagingSlots(spec, lists, tiers));
  // Where staging takes as much room as the rows would, nothing is won.
  if (spread.host_end < spread.host_begin + spread.staging_pages + 1) return {};
  return spread;
}

SlotDemand DemandOf(const KvLayout& layout, const SlotPlacement& spread, uint32_t pages) {
  SlotDemand demand;
  demand.pages = pages;
  if (spread.host_columns() == 0) return demand;
  const auto lists = static_cast<uint32_t>(layout.num_lists());
  demand.staging_pages = lists * spread.staging_pages;
  demand.spread.host = lists * spread.host_columns();
  demand.spread.front = pages - demand.spread.host + demand.staging_pages;
  return demand;
}

}  // namespace winnow
