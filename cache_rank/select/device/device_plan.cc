#include "cache_rank/select/device/device_plan.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/selection/spec_traits.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<DevicePlan>> DevicePlan::Create(const device::DeviceTable* table, device::Device* device,
                                                               const DeviceKvStore* store, const SelectionSpec& spec,
                                                               int max_rows, uint32_t max_budget) {
  if (max_rows < 1 || max_rows > 64) {
    return absl::InvalidArgumentError(absl::StrCat("a plan has 1 to 64 rows, not ", max_rows));
  }
  WINNOW_RETURN_IF_ERROR(CheckDeviceSpec(spec, store->shape().rows));
  std::unique_ptr<DevicePlan> plan(new DevicePlan(table, device, store, spec, max_rows, max_budget));
  WINNOW_ASSIGN_OR_RETURN(plan->memory_, device->Allocate(plan->DeviceBytes()));
  device::Arena arena(plan->memory_->data());
  plan->Carve(arena);
  return plan;
}

std::unique_ptr<DevicePlan> DevicePlan::Unallocated(const DeviceKvStore* store, const SelectionSpec& spec, int max_rows,
                                                    uint32_t max_budget) {
  return std::unique_ptr<DevicePlan>(new DevicePlan(nullptr, nullptr, store, spec, max_rows, max_budget));
}

size_t DevicePlan::DeviceBytes() {
  device::Arena counting(nullptr);
  Carve(counting);
  return counting.used_bytes();
}

DevicePlan::DevicePlan(const device::DeviceTable* table, device::Device* device, const DeviceKvStore* store,
                       const SelectionSpec& spec, int max_rows, uint32_t max_budget)
    : table_(table),
      device_(device),
      store_(store),
      spec_(spec),
      max_rows_(max_rows),
      max_budget_(max_budget != 0 ? max_budget : GreatestHeadBudget(spec, layout().num_lists())),
      next_positions_(max_rows, device::kNoPosition),
      sequences_(max_rows),
      prompt_tokens_(max_rows),
      lists_(num_lists()),
      residency_(num_lists()),
      targets_(num_lists()) {
  std::iota(sequences_.begin(), sequences_.end(), 0u);
}

void DevicePlan::Carve(device::Arena& arena) {
  const size_t row_heads = static_cast<size_t>(max_rows_) * layout().num_kv_heads;
  arrays_.plan = arena.TakeArray<uint32_t>(1);
  arrays_.next_positions = arena.TakeArray<uint32_t>(max_rows_);
  arrays_.positions = arena.TakeArray<uint32_t>(max_rows_);
  arrays_.list_positions = arena.TakeArray<uint32_t>(row_heads);
  arrays_.sequences = arena.TakeArray<uint32_t>(max_rows_);
  arrays_.prompt_tokens = arena.TakeArray<uint32_t>(max_rows_);
  arrays_.lists = arena.TakeArray<device::SelectionList>(num_lists());
  arrays_.residency = arena.TakeArray<device::ResidencyList>(num_lists());
  arrays_.targets = arena.TakeArray<device::PushTarget>(num_lists());
}

void DevicePlan::SetRow(int row, uint32_t sequence, uint32_t position, const PeerPools& pools, uint32_t prompt_tokens) {
  WINNOW_CHECK(row >= 0 && row < max_rows_ && store_->is_open(sequence));
  const bool in_place = store_->shape().rows == RowTier::kInPlace;
  WINNOW_CHECK(pools.pool_bases.size() == (in_place ? 0 : layout().num_lists()));
  next_positions_[row] = position;
  sequences_[row] = sequence;
  prompt_tokens_[row] = prompt_tokens;
  const int heads = layout().num_kv_heads;
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    for (int head = 0; head < heads; ++head) {
      const size_t list = layout().list(layer, head);
      const size_t entry = FirstList(layer) + static_cast<size_t>(row) * heads + head;
      lists_[entry] = {.first_block = store_->FirstBlock(sequence, list),
                       .num_keys = 0,
                       .first = spec_.sink_tokens,
                       .last = spec_.sink_tokens,
                       .budget = HeadBudget(spec_, list),
                       .query = static_cast<uint32_t>(row * heads + head)};
      if (in_place) continue;
      residency_[entry] = store_->Residency(sequence, list);
      if (!pools.pool_slots.empty()) {
        WINNOW_CHECK(pools.pool_slots[list] <= residency_[entry].pool_slots);
        residency_[entry].pool_slots = pools.pool_slots[list];
      }
      targets_[entry] = {.slot_pool = pools.slot_pool,
                         .pages = store_->PeerPages(sequence, list),
                         .pool_base = pools.pool_bases[list]};
    }
  }
}

void DevicePlan::Leave(int row) {
  next_positions_[row] = device::kNoPosition;
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    const size_t first = FirstList(layer) + static_cast<size_t>(row) * layout().num_kv_heads;
    std::fill_n(lists_.begin() + static_cast<int64_t>(first), layout().num_kv_heads, device::SelectionList{});
    std::fill_n(residency_.begin() + static_cast<int64_t>(first), layout().num_kv_heads, device::ResidencyList{});
    std::fill_n(targets_.begin() + static_cast<int64_t>(first), layout().num_kv_heads, device::PushTarget{});
  }
}

void DevicePlan::SetRowInPlace(int row, const SelectionSpec& of, uint32_t prompt_tokens, const Staging& staging,
                               device::Stream stream) {
  const auto sequence = static_cast<uint32_t>(row);
  SetRow(row, sequence, 0, {}, prompt_tokens);
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    for (int head = 0; head < layout().num_kv_heads; ++head) {
      const uint32_t budget = std::min(HeadBudget(of, layout().list(layer, head)), max_budget_);
      const size_t entry = FirstList(layer) + static_cast<size_t>(row) * layout().num_kv_heads + head;
      lists_[entry].budget = budget;
      residency_[entry] = {};
      targets_[entry] = {};
      if (staging.pool_slots == 0) continue;
      residency_[entry] = store_->Residency(sequence, layout().list(layer, head));
      residency_[entry].pool_slots = std::min(residency_[entry].pool_slots, staging.pool_slots);
      targets_[entry] = {.slot_pool = staging.slot_pool,
                         .pages = staging.pages + entry * staging.pages_per_list,
                         .pool_base = staging.pool_base};
    }
  }
  UploadRow(row, stream);
}

void DevicePlan::LeaveInPlace(int row, device::Stream stream) {
  Leave(row);
  UploadRow(row, stream);
}

void DevicePlan::UploadRow(int row, device::Stream stream) {
  const size_t heads = layout().num_kv_heads;
  device_->CopyAsync(arrays_.next_positions + row, &next_positions_[row], sizeof(uint32_t), stream);
  device_->CopyAsync(arrays_.sequences + row, &sequences_[row], sizeof(uint32_t), stream);
  device_->CopyAsync(arrays_.prompt_tokens + row, &prompt_tokens_[row], sizeof(uint32_t), stream);
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    const size_t first = FirstList(layer) + row * heads;
    device_->CopyAsync(arrays_.lists + first, &lists_[first], heads * sizeof(device::SelectionList), stream);
    if (store_->shape().pool_slots == 0) continue;  // nothing is staged
    device_->CopyAsync(arrays_.residency + first, &residency_[first], heads * sizeof(device::ResidencyList), stream);
    device_->CopyAsync(arrays_.targets + first, &targets_[first], heads * sizeof(device::PushTarget), stream);
  }
}

void DevicePlan::SetNextPlan(uint32_t plan) {
  next_plan_ = plan;
}

void DevicePlan::Upload(device::Stream stream) {
  const auto copy = [&](auto* to, const auto& from) {
    device_->CopyAsync(to, from.data(), from.size() * sizeof(from[0]), stream);
  };
  const uint32_t opened = next_plan_ - 1;
  device_->CopyAsync(arrays_.plan, &opened, sizeof(opened), stream);
  copy(arrays_.next_positions, next_positions_);
  copy(arrays_.sequences, sequences_);
  copy(arrays_.prompt_tokens, prompt_tokens_);
  copy(arrays_.lists, lists_);
  copy(arrays_.residency, residency_);
  copy(arrays_.targets, targets_);
}

void DevicePlan::EnqueueBegin(device::Stream stream, int num_rows, const uint32_t* step_positions) const {
  table_->predict->begin_plan(stream, {.plan = arrays_.plan,
                                       .next_positions = arrays_.next_positions,
                                       .step_positions = step_positions,
                                       .positions = arrays_.positions,
                                       .list_positions = arrays_.list_positions,
                                       .lists = arrays_.lists,
                                       .num_rows = num_rows,
                                       .max_rows = max_rows_,
                                       .num_layers = layout().num_layers,
                                       .num_kv_heads = layout().num_kv_heads,
                                       .recent_tokens = spec_.recent_tokens});
  if (!holds_lists()) return;
  table_->page_units->hold_lists(stream, {.lists = arrays_.lists,
                                          .num_layers = layout().num_layers,
                                          .max_rows = max_rows_,
                                          .num_rows = num_rows,
                                          .num_kv_heads = layout().num_kv_heads,
                                          .reuse_interval = spec_.reuse_interval,
                                          .positions = arrays_.positions,
                                          .prompt_tokens = arrays_.prompt_tokens});
}

bool DevicePlan::holds_lists() const {
  return spec_.reuse_interval > 1 || HasStreamingHeads(spec_);
}

void DevicePlan::Advance() {
  ++next_plan_;
  for (uint32_t& position : next_positions_) position += position != device::kNoPosition;
}

absl::Status DevicePlan::CheckPositions() const {
  for (int row = 0; row < max_rows_; ++row) {
    const uint32_t position = next_positions_[row];
    if (position == device::kNoPosition || position < store_->max_positions(sequences_[row])) continue;
    return absl::OutOfRangeError(absl::StrCat("position ", position, " in row ", row, ": its sequence ends at ",
                                              store_->max_positions(sequences_[row])));
  }
  return absl::OkStatus();
}

int DevicePlan::num_rows() const {
  int rows = max_rows_;
  while (rows > 0 && next_positions_[rows - 1] == device::kNoPosition) --rows;
  return rows;
}

uint32_t DevicePlan::least_position() const {
  static_assert(device::kNoPosition == ~0u);
  return *std::min_element(next_positions_.begin(), next_positions_.end());
}

uint32_t DevicePlan::greatest_position() const {
  uint32_t greatest = 0;
  for (const uint32_t position : next_positions_) {
    if (position != device::kNoPosition) greatest = std::max(greatest, position);
  }
  return greatest;
}

}  // namespace winnow
