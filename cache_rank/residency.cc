#include "cache_rank/residency.h"

#include "common/base/check.h"

namespace winnow {

void HeadResidency::Reset(uint32_t max_positions) {
  max_positions_ = max_positions;
  newest_ = oldest_ = kNone;
  slots_.clear();
  index_of_.clear();
}

void HeadResidency::Resize(uint32_t pool_slots) {
  const uint32_t old_slots = this->pool_slots();
  for (uint32_t i = pool_slots; i < old_slots; ++i) {
    if (slots_[i].position != kNone) index_of_[slots_[i].position] = kNone;
    Unlink(i);
  }
  slots_.resize(pool_slots);
  for (uint32_t i = pool_slots; i-- > old_slots;) {
    // Pushing from the highest index down leaves the lowest one last, where victims come from.
    PushOldest(i);
  }
}

void HeadResidency::SetIdentity(uint32_t first_position, uint32_t count) {
  const uint32_t slots = pool_slots();
  WINNOW_CHECK(count <= slots);
  Reset(max_positions_);
  Resize(slots);
  for (uint32_t i = 0; i < count; ++i) {
    MapPosition(first_position + i, i);
    Unlink(i);
    PushNewest(i);
  }
}

void HeadResidency::Update(std::span<const uint32_t> selected, uint32_t position, uint32_t ring_tokens,
                           HeadDelta* delta) {
  WINNOW_CHECK(selected.size() <= slots_.size());
  delta->selected.resize(selected.size());
  delta->streamed.clear();
  delta->streamed_positions.clear();
  delta->local.clear();
  if (index_of_.empty()) index_of_.assign(max_positions_, kNone);
  for (size_t i = 0; i < selected.size(); ++i) {
    const uint32_t index = index_of_[selected[i]];
    delta->selected[i] = index;
    if (index == kNone || index == newest_) continue;
    Unlink(index);
    PushNewest(index);
  }
  for (size_t i = 0; i < selected.size(); ++i) {
    if (delta->selected[i] != kNone) continue;
    const uint32_t victim = oldest_;
    if (slots_[victim].position != kNone) index_of_[slots_[victim].position] = kNone;
    MapPosition(selected[i], victim);
    Unlink(victim);
    PushNewest(victim);
    delta->selected[i] = victim;
    if (uint64_t{selected[i]} + ring_tokens > position) {
      delta->local.push_back({.pool_index = victim, .position = selected[i]});
    } else {
      delta->streamed.push_back(victim);
      delta->streamed_positions.push_back(selected[i]);
    }
  }
}

void HeadResidency::SendAll(std::span<const uint32_t> selected, HeadDelta* delta) {
  delta->streamed = delta->selected;
  delta->streamed_positions.assign(selected.begin(), selected.end());
  delta->local.clear();
}

void HeadResidency::MapPosition(uint32_t position, uint32_t index) {
  if (index_of_.empty()) index_of_.assign(max_positions_, kNone);
  WINNOW_CHECK(position < max_positions_);
  slots_[index].position = position;
  index_of_[position] = index;
}

void HeadResidency::Unlink(uint32_t index) {
  const Slot& slot = slots_[index];
  (slot.newer == kNone ? newest_ : slots_[slot.newer].older) = slot.older;
  (slot.older == kNone ? oldest_ : slots_[slot.older].newer) = slot.newer;
}

void HeadResidency::PushNewest(uint32_t index) {
  slots_[index].newer = kNone;
  slots_[index].older = newest_;
  (newest_ == kNone ? oldest_ : slots_[newest_].newer) = index;
  newest_ = index;
}

void HeadResidency::PushOldest(uint32_t index) {
  slots_[index].older = kNone;
  slots_[index].newer = oldest_;
  (oldest_ == kNone ? newest_ : slots_[oldest_].older) = index;
  oldest_ = index;
}

}  // namespace winnow
