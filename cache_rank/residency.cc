#include "cache_rank/residency.h"

#include <limits>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr float kEmpty = std::numeric_limits<float>::infinity();

}  // namespace

void HeadResidency::Reset(uint32_t max_positions) {
  WINNOW_CHECK(max_positions <= kMaxPositions);
  max_positions_ = max_positions;
  positions_.clear();
  ages_.clear();
  index_of_.clear();
}

void HeadResidency::Resize(uint32_t pool_slots) {
  for (uint32_t i = pool_slots; i < this->pool_slots(); ++i) {
    if (positions_[i] != kNone) index_of_[positions_[i]] = kNone;
  }
  positions_.resize(pool_slots, kNone);
  ages_.resize(pool_slots, kEmpty);
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
  const float age = -static_cast<float>(position);
  uint32_t missing = 0;
  for (uint32_t i = 0; i < num_selected; ++i) {
    const uint32_t index = index_of_[selected[i]];
    delta->selected[i] = index;
    if (index == kNone) {
      ++missing;
    } else {
      ages_[index] = age;
    }
  }
  if (missing == 0) return;
  const uint32_t slots = pool_slots();
  uint32_t* victims = scratch.Reserve(missing + TopKScratchWords(slots));
  kernels.top_k({.values = ages_.data(),
                 .first = 0,
                 .last = slots,
                 .k = missing,
                 .indices = victims,
                 .scratch = victims + missing});
  for (uint32_t i = 0; missing > 0; ++i) {
    if (delta->selected[i] != kNone) continue;
    const uint32_t index = *victims++;
    --missing;
    if (positions_[index] != kNone) index_of_[positions_[index]] = kNone;
    Place(selected[i], index);
    ages_[index] = age;
    delta->selected[i] = index;
    if (uint64_t{selected[i]} + ring_tokens > position) {
      delta->local.push_back({.pool_index = index, .position = selected[i]});
    } else {
      delta->streamed.push_back(index);
      delta->streamed_positions.push_back(selected[i]);
    }
  }
}

void HeadResidency::Place(uint32_t position, uint32_t index) {
  if (index_of_.empty()) index_of_.assign(max_positions_, kNone);
  WINNOW_CHECK(position < max_positions_);
  positions_[index] = position;
  index_of_[position] = index;
}

}  // namespace winnow
