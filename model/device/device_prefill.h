#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "model/device/decode_slots.h"
#include "model/device/device_layers.h"

namespace winnow {

// One prompt at a time, chunk by chunk: keeps its rows of all layers by position, until they are in the slots of decode
// steps or with a cache rank. What a prompt's last token gives is left to the first decode step, which computes it with
// the bits of all later ones. Layers are borrowed. One thread.
class DevicePrefill {
 public:
  static size_t ArenaBytes(const ModelConfig& config, uint32_t max_tokens);
  static absl::StatusOr<std::unique_ptr<DevicePrefill>> Create(device::Device& device, DeviceLayers& layers,
                                                               uint32_t max_tokens);

  // Enqueues one chunk: positions first_position .. + num_tokens - 1 of tokens in device memory. Rows before
  // first_position must be those of earlier chunks. At most the layers' max_prefill_rows. `on_rows` is called layer by
  // layer, where what has been enqueued completes the chunk's rows of that layer.
  void Chunk(device::Stream stream, const uint32_t* token_ids, uint32_t first_position, int num_tokens,
             const std::function<void(int layer)>& on_rows = nullptr);
  // Copies tokens to the device and computes them all in chunks of that size. Waits for the device.
  absl::Status Run(device::Stream stream, std::span<const uint32_t> token_ids, int chunk_tokens);

  // Copies what row `row` attends to at position num_tokens, of positions below it, into its slots.
  // `recent_begin`: where its recent part begins then.
  void FillSlots(device::Stream stream, const DecodeSlots& slots, int row, uint32_t num_tokens, uint32_t recent_begin);

  // Rows of a layer by position: [num_kv_heads] x head_stride rows of bf16.
  std::byte* rows(int layer) const;
  int64_t head_stride() const { return max_tokens_; }

 private:
  DevicePrefill(device::Device& device, DeviceLayers& layers, uint32_t max_tokens)
      : device_(device), layers_(layers), max_tokens_(max_tokens) {}
  size_t CarveState(void* region);
  size_t row_bytes() const;

  device::Device& device_;
  DeviceLayers& layers_;
  const uint32_t max_tokens_;
  std::unique_ptr<device::DeviceMemory> rows_;
  std::unique_ptr<device::DeviceMemory> state_;
  uint32_t* token_ids_ = nullptr;     // [max_tokens]
  uint32_t* positions_ = nullptr;     // [max_tokens] of a chunk
  void** kv_destinations_ = nullptr;  // [max_tokens, num_kv_heads]
};

}  // namespace winnow
