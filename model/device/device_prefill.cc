#include "model/device/device_prefill.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/device/arena.h"

namespace winnow {

size_t DevicePrefill::ArenaBytes(const ModelConfig& config, uint32_t max_tokens) {
  return config.kv_layout(Dtype::kBf16).token_bytes() * max_tokens;
}

size_t DevicePrefill::row_bytes() const {
  return layers_.config().kv_layout(Dtype::kBf16).row_bytes();
}

std::byte* DevicePrefill::rows(int layer) const {
  const size_t layer_rows = static_cast<size_t>(layers_.config().num_kv_heads) * max_tokens_;
  return static_cast<std::byte*>(rows_->data()) + layer * layer_rows * row_bytes();
}

size_t DevicePrefill::CarveState(void* region) {
  device::Arena arena(region);
  token_ids_ = arena.TakeArray<uint32_t>(max_tokens_);
  positions_ = arena.TakeArray<uint32_t>(max_tokens_);
  kv_destinations_ = arena.TakeArray<void*>(static_cast<size_t>(max_tokens_) * layers_.config().num_kv_heads);
  return arena.used_bytes();
}

absl::StatusOr<std::unique_ptr<DevicePrefill>> DevicePrefill::Create(device::Device& device, DeviceLayers& layers,
                                                                     uint32_t max_tokens) {
  std::unique_ptr<DevicePrefill> prefill(new DevicePrefill(device, layers, max_tokens));
  WINNOW_ASSIGN_OR_RETURN(prefill->rows_, device.Allocate(ArenaBytes(layers.config(), max_tokens)));
  WINNOW_ASSIGN_OR_RETURN(prefill->state_, device.Allocate(prefill->CarveState(nullptr)));
  prefill->CarveState(prefill->state_->data());
  return prefill;
}

void DevicePrefill::Chunk(device::Stream stream, const uint32_t* token_ids, uint32_t first_position, int num_tokens,
                          const std::function<void(int layer)>& on_rows) {
  constexpr DevicePhase kPrefill = DevicePhase::kPrefill;
  WINNOW_CHECK(first_position + num_tokens <= max_tokens_);
  const int num_layers = layers_.config().num_layers;
  layers_.Embed(stream, token_ids, num_tokens);
  for (int layer = 0; layer < num_layers; ++layer) {
    layers_.table().step->begin_chunk(stream, {.rows = rows(layer),
                                               .head_stride = head_stride(),
                                               .row_bytes = row_bytes(),
                                               .first_position = first_position,
                                               .num_rows = num_tokens,
                                               .num_kv_heads = layers_.config().num_kv_heads,
                                               .positions = positions_,
                                               .kv_destinations = kv_destinations_});
    layers_.ProjectQkv(stream, kPrefill, layer, num_tokens);
    layers_.Rope(stream, kPrefill, layer, num_tokens, {.positions = positions_, .kv_destinations = kv_destinations_});
    if (on_rows) on_rows(layer);
    if (layer + 1 == num_layers) return;  // nothing reads what the last layer would give
    layers_.AttendChunk(stream, layer, num_tokens,
                        {.rows = rows(layer), .head_stride = head_stride(), .first_position = first_position});
    layers_.OutputAndMlp(stream, kPrefill, layer, num_tokens);
  }
}

absl::Status DevicePrefill::Run(device::Stream stream, std::span<const uint32_t> token_ids, int chunk_tokens) {
  WINNOW_CHECK(token_ids.size() <= max_tokens_);
  device_.CopyAsync(token_ids_, token_ids.data(), token_ids.size_bytes(), stream);
  for (size_t done = 0; done < token_ids.size(); done += chunk_tokens) {
    const size_t count = std::min<size_t>(chunk_tokens, token_ids.size() - done);
    Chunk(stream, token_ids_ + done, static_cast<uint32_t>(done), static_cast<int>(count));
  }
  return device_.Synchronize(stream);
}

void DevicePrefill::FillSlots(device::Stream stream, const DecodeSlots& slots, int row, uint32_t num_tokens,
                              uint32_t recent_begin) {
  const DecodeSlotShape& shape = slots.shape();
  WINNOW_CHECK(shape.layout.dtype == Dtype::kBf16 && recent_begin <= num_tokens && shape.lists_per_kv_head == 1);
  layers_.table().step->fill_slots(
      stream, {.rows = rows_->data(),
               .list_stride = head_stride(),
               .lists = slots.inbox().lists + slots.list(0, row, 0),
               .lists_layer_stride = static_cast<int64_t>(shape.max_rows) * shape.layout.num_kv_heads,
               .num_layers = shape.layout.num_layers,
               .num_kv_heads = shape.layout.num_kv_heads,
               .pages = slots.pages(),
               .selected = slots.inbox().pool_indices,
               .selected_positions = slots.selected_positions(),
               .recent_begin = recent_begin,
               .recent_count = num_tokens - recent_begin,
               .max_count = shape.max_list_rows(),
               .slot_pool = slots.slot_pool(),
               .row_bytes = row_bytes()});
}

}  // namespace winnow
