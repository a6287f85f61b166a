#include "inference_rank/sequence/selection_trace.h"

#include <algorithm>
#include <utility>

#include "transport/wire/wire.h"

namespace winnow {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

SelectionTrace::SelectionTrace(const SelectionSpec& spec, const KvLayout& layout, uint32_t prompt_tokens,
                               uint32_t max_positions, uint32_t parts)
    : spec_(spec),
      num_lists_(layout.num_lists()),
      group_size_(static_cast<uint32_t>(layout.group_size())),
      prompt_tokens_(prompt_tokens),
      max_positions_(max_positions),
      parts_(parts),
      pools_(num_lists_),
      selected_(num_lists_) {}

void SelectionTrace::BeginStep(uint32_t position, uint32_t attach_position) {
  position_ = position;
  has_step_ = true;
  if (attach_position_ == attach_position) return;
  attach_position_ = attach_position;
  for (std::vector<uint32_t>& pool : pools_) pool.clear();
  for (std::vector<uint32_t>& selected : selected_) selected.clear();
  moved_.clear();
}

// As both ranks know it when the list becomes sparse.
std::vector<uint32_t>& SelectionTrace::PoolOf(size_t list) {
  std::vector<uint32_t>& pool = pools_[list];
  if (!pool.empty() || !attach_position_) return pool;
  pool.assign(PoolSlots(spec_, list, max_positions_, static_cast<int>(group_size_)), kNone);
  const uint32_t known = IdentityRows(spec_, position_, prompt_tokens_, *attach_position_);
  for (uint32_t i = 0; i < std::min<size_t>(known, pool.size()); ++i) pool[i] = spec_.sink_tokens + i;
  return pool;
}

void SelectionTrace::Place(size_t list, uint32_t pool_index, uint32_t position) {
  std::vector<uint32_t>& pool = PoolOf(list);
  if (pool_index < pool.size() && position < max_positions_) pool[pool_index] = position;
}

void SelectionTrace::OnSelected(size_t list, std::span<const uint32_t> pool_indices) {
  PoolOf(list);
  selected_[list].assign(pool_indices.begin(), pool_indices.end());
}

void SelectionTrace::OnStreamed(size_t list, std::span<const uint32_t> pool_indices,
                                std::span<const uint32_t> positions) {
  for (size_t i = 0; i < std::min(pool_indices.size(), positions.size()); ++i) {
    Place(list, pool_indices[i], positions[i]);
    moved_.push_back(positions[i]);
  }
}

void SelectionTrace::OnMass(uint32_t position, double mass) {
  if (mass_.count == 0 || mass_.position != position) mass_ = {.position = position};
  mass_.sum += mass;
  ++mass_.count;
}

// Part i begins at the first position whose part it is: the rounded-up i * context / parts.
void SelectionTrace::AddRange(uint32_t first, uint32_t end, Counts* counts) const {
  const uint64_t context = uint64_t{position_} + 1;
  while (first < end) {
    const uint32_t part = PartOf(first);
    const auto next = static_cast<uint32_t>(((part + 1) * context + parts_ - 1) / parts_);
    const uint32_t last = std::min(end, next);
    (*counts)[static_cast<int>(part)] += last - first;
    first = last;
  }
}

void SelectionTrace::AddList(size_t list, v1::SelectionTrace* trace) const {
  const uint32_t end = position_ + 1;
  Counts* const attended = trace->mutable_attended();
  Counts* const resident = trace->mutable_resident();
  if (AttendsEverything(spec_, list, position_, prompt_tokens_)) {
    AddRange(0, end, attended);
    AddRange(0, end, resident);
    return;
  }
  const uint32_t sinks = std::min(spec_.sink_tokens, end);
  AddRange(0, sinks, attended);
  AddRange(std::max(sinks, WindowStart(spec_, position_, prompt_tokens_)), end, attended);
  const uint32_t ring = wire::RingTokens(spec_.recent_tokens, kBlockTokens, kSlotPageTokens);
  const uint32_t ring_start = std::max(sinks, end > ring ? end - ring : 0);
  AddRange(0, sinks, resident);
  AddRange(ring_start, end, resident);
  const std::vector<uint32_t>& pool = pools_[list];
  for (const uint32_t index : selected_[list]) {
    if (index < pool.size() && pool[index] < end) ++(*attended)[static_cast<int>(PartOf(pool[index]))];
  }
  // A row may lie in the pool and in the ring: it is counted once.
  for (const uint32_t position : pool) {
    if (position < ring_start) ++(*resident)[static_cast<int>(PartOf(position))];
  }
}

// Nobody tells of lists that attend to everything: they hold all of the mass.
void SelectionTrace::AddMass(v1::SelectionTrace* trace) {
  Mass mass = std::exchange(mass_, Mass{.position = position_});
  const uint32_t told = mass.count;
  if (told == 0) mass.position = position_;
  for (size_t list = 0; list < num_lists_; ++list) {
    if (!AttendsEverything(spec_, list, mass.position, prompt_tokens_)) continue;
    mass.sum += 1;
    ++mass.count;
  }
  const bool is_known = told > 0 || mass.count == num_lists_;
  if (!is_known || mass.position < prompt_tokens_) return;
  trace->set_captured_mass(static_cast<float>(mass.sum / mass.count));
  trace->set_mass_token_index(mass.position + 1 - prompt_tokens_);
}

std::optional<v1::SelectionTrace> SelectionTrace::Take() {
  if (!has_step_) return std::nullopt;
  has_step_ = false;
  v1::SelectionTrace trace;
  trace.set_token_index(position_ + 1 - prompt_tokens_);
  trace.set_context_tokens(position_ + 1);
  trace.set_lists(static_cast<uint32_t>(num_lists_));
  for (Counts* counts : {trace.mutable_attended(), trace.mutable_resident(), trace.mutable_moved()}) {
    counts->Resize(static_cast<int>(parts_), 0);
  }
  for (size_t list = 0; list < num_lists_; ++list) AddList(list, &trace);
  for (const uint32_t position : moved_) {
    if (position <= position_) ++(*trace.mutable_moved())[static_cast<int>(PartOf(position))];
  }
  moved_.clear();
  AddMass(&trace);
  return trace;
}

}  // namespace winnow
