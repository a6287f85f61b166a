#include "model/device/decode_slots.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/device/arena.h"

namespace winnow {
namespace {

constexpr uint32_t kPage = kSlotPageTokens;

uint32_t WholePages(uint32_t rows) {
  return (rows + kPage - 1) / kPage * kPage;
}

}  // namespace

uint32_t DecodeSlotShape::pool_base() const {
  if (as_working_set) return sinks + ring_capacity();
  return holds_everything() ? 0 : WholePages(sinks);
}
uint32_t DecodeSlotShape::ring_base() const {
  if (as_working_set) return sinks;
  return holds_everything() ? 0 : pool_base() + WholePages(pool_slots);
}
uint32_t DecodeSlotShape::ring_capacity() const {
  if (holds_everything()) return WholePages(dense_tokens);
  return WholePages(std::max(ring_tokens, recent_tokens + kBlockTokens - 1));
}
uint32_t DecodeSlotShape::pages_per_list() const {
  if (as_working_set) return (pool_base() + pool_slots + kPage - 1) / kPage;
  return (ring_base() + ring_capacity()) / kPage + staging_pages;
}
uint32_t DecodeSlotShape::max_list_rows() const {
  if (is_dense()) return dense_tokens;
  return sinks + max_budget + std::max(ring_tokens, recent_tokens + kBlockTokens + reuse_interval - 2);
}
size_t DecodeSlotShape::slot_bytes() const {
  return num_slots() * (row_bytes() + (layout.dtype == Dtype::kBf16 ? 0 : 2 * sizeof(float)));
}

size_t DecodeSlots::Bytes(const DecodeSlotShape& shape) {
  return shape.slot_bytes() + BytesOver(shape);
}

size_t DecodeSlots::CarveTables(void* region) {
  device::Arena arena(region);
  pages_ = arena.TakeArray<uint32_t>(shape_.num_lists() * shape_.pages_per_list());
  selected_positions_ = arena.TakeArray<uint32_t>(shape_.num_selections() * shape_.max_budget);
  return arena.used_bytes();
}

absl::StatusOr<std::unique_ptr<DecodeSlots>> DecodeSlots::Create(device::Device& device, const DecodeSlotShape& shape,
                                                                 uint64_t page_seed) {
  WINNOW_ASSIGN_OR_RETURN(auto slot_memory, device.Allocate(shape.slot_bytes()));
  auto* const slot_pool = static_cast<std::byte*>(slot_memory->data());
  float* const scales = shape.layout.dtype == Dtype::kBf16
                            ? nullptr
                            : reinterpret_cast<float*>(slot_pool + shape.num_slots() * shape.row_bytes());
  std::vector<uint32_t> pages(shape.num_lists() * shape.pages_per_list());
  std::iota(pages.begin(), pages.end(), 0u);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(page_seed));
  return Make(device, shape, std::move(slot_memory), slot_pool, scales, std::move(pages));
}

size_t DecodeSlots::BytesOver(const DecodeSlotShape& shape) {
  return InferenceInboxBytes(shape.exchange()) + InferenceFlagsBytes(shape.exchange()) +
         DecodeSlots(nullptr, shape).CarveTables(nullptr);
}

absl::StatusOr<std::unique_ptr<DecodeSlots>> DecodeSlots::CreateOver(device::Device& device,
                                                                     const DecodeSlotShape& shape, void* slot_pool,
                                                                     float* scales) {
  WINNOW_CHECK(shape.as_working_set || shape.holds_everything());
  WINNOW_CHECK(shape.layout.dtype == (scales == nullptr ? Dtype::kBf16 : Dtype::kI8));
  return Make(device, shape, nullptr, slot_pool, scales,
              std::vector<uint32_t>(shape.num_lists() * shape.pages_per_list()));
}

absl::StatusOr<std::unique_ptr<DecodeSlots>> DecodeSlots::Make(device::Device& device, const DecodeSlotShape& shape,
                                                               std::unique_ptr<device::DeviceMemory> slot_memory,
                                                               void* slot_pool, float* scales,
                                                               std::vector<uint32_t> pages) {
  WINNOW_CHECK(shape.holds_everything() || shape.max_budget <= shape.pool_slots);
  WINNOW_CHECK(shape.holds_everything() || (shape.lists_per_kv_head == 1 && shape.reuse_interval == 1));
  std::unique_ptr<DecodeSlots> slots(new DecodeSlots(&device, shape));
  slots->slot_memory_ = std::move(slot_memory);
  slots->scales_ = scales;
  WINNOW_ASSIGN_OR_RETURN(slots->inbox_memory_, device.Allocate(InferenceInboxBytes(shape.exchange())));
  WINNOW_ASSIGN_OR_RETURN(slots->flags_memory_, device.Allocate(InferenceFlagsBytes(shape.exchange())));
  WINNOW_ASSIGN_OR_RETURN(slots->table_memory_, device.Allocate(slots->CarveTables(nullptr)));
  slots->CarveTables(slots->table_memory_->data());
  slots->inbox_ =
      InferenceInboxAt(shape.exchange(), slots->inbox_memory_->data(), slots->flags_memory_->data(), slot_pool);
  slots->host_pages_ = std::move(pages);
  const device::Stream stream = slots->stream_ = device.NewStream();
  for (const device::DeviceMemory* memory : {slots->inbox_memory_.get(), slots->flags_memory_.get()}) {
    device.FillAsync(memory->data(), 0, memory->bytes(), stream);
  }
  device.CopyAsync(slots->pages_, slots->host_pages_.data(), slots->host_pages_.size() * sizeof(uint32_t), stream);
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  WINNOW_RETURN_IF_ERROR(slots->Reset());
  return slots;
}

absl::Status DecodeSlots::Reset() {
  host_lists_.clear();
  for (size_t i = 0; i < shape_.num_selections(); ++i) {
    host_lists_.push_back({.first_page = static_cast<uint32_t>(i / shape_.lists_per_kv_head * shape_.pages_per_list()),
                           .sinks = shape_.is_dense() ? 0 : shape_.sinks,
                           .selected_first = static_cast<uint32_t>(i * shape_.max_budget),
                           .selected_count = 0,
                           .pool_base = shape_.pool_base(),
                           .ring_base = shape_.ring_base(),
                           .ring_tokens = shape_.ring_capacity(),
                           .recent_begin = 0,
                           .recent_count = 0,
                           .num_pages = shape_.pages_per_list()});
  }
  return UploadLists();
}

std::vector<uint32_t> DecodeSlots::BlocksOf(size_t list) const {
  WINNOW_CHECK(shape_.holds_everything());
  constexpr uint32_t kPerPage = kPage / kBlockTokens;
  std::vector<uint32_t> blocks;
  for (uint32_t i = 0; i < shape_.pages_per_list(); ++i) {
    const uint32_t page = host_pages_[list * shape_.pages_per_list() + i];
    for (uint32_t part = 0; part < kPerPage; ++part) blocks.push_back(page * kPerPage + part);
  }
  return blocks;
}

void DecodeSlots::SetRow(int row, std::span<const uint32_t> pages, device::Stream stream, bool stages) {
  const size_t heads = shape_.layout.num_kv_heads, per_list = shape_.pages_per_list();
  WINNOW_CHECK(row >= 0 && row < shape_.max_rows && pages.size() == shape_.layout.num_lists() * per_list);
  for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
    const size_t first = list(layer, row, 0);
    uint32_t* const to = host_pages_.data() + first * per_list;
    std::copy_n(pages.data() + static_cast<size_t>(layer) * heads * per_list, heads * per_list, to);
    device_->CopyAsync(pages_ + first * per_list, to, heads * per_list * sizeof(uint32_t), stream);
    const size_t selection = this->selection(layer, row, 0), selections = heads * shape_.lists_per_kv_head;
    for (size_t i = selection; i < selection + selections; ++i) {
      host_lists_[i].pool_base = stages ? shape_.staging_base() : shape_.pool_base();
    }
    device_->CopyAsync(inbox_.lists + selection, &host_lists_[selection], selections * sizeof(device::AttentionList),
                       stream);
  }
}

absl::Status DecodeSlots::UploadLists() {
  device_->CopyAsync(inbox_.lists, host_lists_.data(), host_lists_.size() * sizeof(device::AttentionList), stream_);
  return device_->Synchronize(stream_);
}

absl::Status DecodeSlots::SetRecentBegin(uint32_t position) {
  for (device::AttentionList& list : host_lists_) list.recent_begin = position;
  return UploadLists();
}

absl::Status DecodeSlots::SelectRange(uint32_t begin, uint32_t count, uint64_t pool_seed) {
  WINNOW_CHECK(count <= shape_.max_budget && !shape_.holds_everything());
  std::vector<uint32_t> pool(shape_.pool_slots);
  std::iota(pool.begin(), pool.end(), 0u);
  std::shuffle(pool.begin(), pool.end(), std::mt19937_64(pool_seed));
  std::vector<uint32_t> indices(shape_.num_lists() * shape_.max_budget), positions(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    indices[i] = pool[i % shape_.max_budget];
    positions[i] = begin + static_cast<uint32_t>(i % shape_.max_budget);
  }
  device_->CopyAsync(inbox_.pool_indices, indices.data(), indices.size() * sizeof(uint32_t), stream_);
  device_->CopyAsync(selected_positions_, positions.data(), positions.size() * sizeof(uint32_t), stream_);
  WINNOW_RETURN_IF_ERROR(device_->Synchronize(stream_));
  for (device::AttentionList& list : host_lists_) list.selected_count = count;
  return UploadLists();
}

}  // namespace winnow
