#include "cache_rank/store/residency.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr float kEmpty = std::numeric_limits<float>::infinity();

float AgeAt(uint32_t position) {
  return -static_cast<float>(position);
}

}  // namespace

void HeadResidency::Reset(uint32_t max_positions) {
  WINNOW_CHECK(max_positions <= kMaxPositions);
  max_positions_ = max_positions;
  positions_.clear();
  ages_.clear();
  prefetched_.clear();
  index_of_.clear();
}

void HeadResidency::Resize(uint32_t pool_slots) {
  for (uint32_t i = pool_slots; i < this->pool_slots(); ++i) {
    if (positions_[i] != kNone) index_of_[positions_[i]] = kNone;
  }
  positions_.resize(pool_slots, kNone);
  ages_.resize(pool_slots, kEmpty);
  if (!prefetched_.empty()) prefetched_.resize(pool_slots);
}

void HeadResidency::SetIdentity(uint32_t first_position, uint32_t count) {
  const uint32_t slots = pool_slots();
  WINNOW_CHECK(count <= slots);
  Reset(max_positions_);
  Resize(slots);
  for (uint32_t i = 0; i < count; ++i) {
    Place(first_position + i, i);
    ages_[i] = 0;
  }
}

void HeadResidency::Update(const KernelTable& kernels, std::span<const uint32_t> selected, uint32_t position,
                           uint32_t ring_tokens, ScratchBuffer<uint32_t>& scratch, HeadDelta* delta) {
  WINNOW_CHECK(selected.size() <= positions_.size());
  const uint32_t num_selected = static_cast<uint32_t>(selected.size());
  delta->selected.resize(num_selected);
  delta->streamed.clear();
  delta->streamed_positions.clear();
  delta->local.clear();
  if (index_of_.empty()) index_of_.assign(max_positions_, kNone);
  const float age = AgeAt(position);
  delta->prefetch_hits = 0;
  // Images are too many to stay in a core's caches. No branch depends on what is read of them, so that a core waits for
  // many of these reads at a time.
  uint32_t* const indices = delta->selected.data();
  for (uint32_t i = 0; i < num_selected; ++i) indices[i] = index_of_[selected[i]];
  uint32_t missing = 0;
  float of_none = 0;
  for (uint32_t i = 0; i < num_selected; ++i) {
    const bool is_missing = indices[i] == kNone;
    *(is_missing ? &of_none : ages_.data() + indices[i]) = age;
    missing += is_missing;
  }
  if (!prefetched_.empty()) {
    for (const uint32_t index : delta->selected) {
      if (index == kNone || !prefetched_[index]) continue;
      prefetched_[index] = false;
      ++delta->prefetch_hits;
    }
  }
  if (missing == 0) return;
  const uint32_t slots = pool_slots();
  uint32_t* const victims = scratch.Reserve(missing + TopKScratchWords(slots));
  kernels.top_k({.values = ages_.data(),
                 .first = 0,
                 .last = slots,
                 .k = missing,
                 .indices = victims,
                 .scratch = victims + missing});
  // Rows that are missing lie in the order of positions, those in the ring behind the others.
  delta->streamed.assign(victims, victims + missing);
  std::vector<uint32_t>& positions = delta->streamed_positions;
  positions.resize(missing + 1);
  for (uint32_t i = 0, next = 0; i < num_selected; ++i) {
    const bool is_missing = indices[i] == kNone;
    positions[next] = selected[i];
    indices[i] = is_missing ? victims[std::min(next, missing - 1)] : indices[i];
    next += is_missing;
  }
  positions.resize(missing);
  for (uint32_t i = 0; i < missing; ++i) {
    Place(positions[i], victims[i]);
    ages_[victims[i]] = age;
  }
  if (!prefetched_.empty()) {
    for (uint32_t i = 0; i < missing; ++i) prefetched_[victims[i]] = false;
  }
  size_t streamed = missing;
  while (streamed > 0 && uint64_t{positions[streamed - 1]} + ring_tokens > position) --streamed;
  for (size_t i = streamed; i < missing; ++i) {
    delta->local.push_back({.pool_index = victims[i], .position = positions[i]});
  }
  delta->streamed.resize(streamed);
  positions.resize(streamed);
}

void HeadResidency::PlanPrefetch(const KernelTable& kernels, std::span<const uint32_t> wanted, uint32_t position,
                                 uint32_t ring_tokens, PrefetchScratch& scratch, HeadDelta* delta) const {
  delta->streamed.clear();
  delta->streamed_positions.clear();
  if (index_of_.empty()) return;
  const uint32_t slots = pool_slots();
  float* ages = scratch.ages.Reserve(slots);
  std::copy(ages_.begin(), ages_.end(), ages);
  const float used_now = AgeAt(position);
  for (const uint32_t row : wanted) {
    if (const uint32_t index = index_of_[row]; index != kNone) {
      ages[index] = used_now;
    } else if (uint64_t{row} + ring_tokens <= uint64_t{position} + 1) {  // else it will be copied
      delta->streamed_positions.push_back(row);
    }
  }
  // Nothing is younger than what was used at `position`, so as long as at most so many are asked for, the oldest ones
  // are none of these.
  const uint32_t free = static_cast<uint32_t>(std::count_if(ages, ages + slots, [&](float a) { return a > used_now; }));
  const uint32_t count = std::min(free, static_cast<uint32_t>(delta->streamed_positions.size()));
  delta->streamed_positions.resize(count);
  if (count == 0) return;
  uint32_t* victims = scratch.victims.Reserve(count + TopKScratchWords(slots));
  kernels.top_k(
      {.values = ages, .first = 0, .last = slots, .k = count, .indices = victims, .scratch = victims + count});
  delta->streamed.assign(victims, victims + count);
}

void HeadResidency::CommitPrefetch(uint32_t pool_index, uint32_t row_position, uint32_t position) {
  WINNOW_CHECK(ages_[pool_index] > AgeAt(position) && index_of_[row_position] == kNone);
  Place(row_position, pool_index);
  ages_[pool_index] = AgeAt(position);
  prefetched_.resize(pool_slots());
  prefetched_[pool_index] = true;
}

void HeadResidency::SendAll(std::span<const uint32_t> selected, HeadDelta* delta) {
  delta->streamed = delta->selected;
  delta->streamed_positions.assign(selected.begin(), selected.end());
  delta->local.clear();
}

void HeadResidency::Place(uint32_t position, uint32_t index) {
  if (index_of_.empty()) index_of_.assign(max_positions_, kNone);
  if (positions_[index] != kNone) index_of_[positions_[index]] = kNone;
  WINNOW_CHECK(position < max_positions_);
  positions_[index] = position;
  index_of_[position] = index;
}

}  // namespace winnow
