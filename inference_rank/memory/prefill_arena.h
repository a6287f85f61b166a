#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/memory/prefill_mode.h"
#include "inference_rank/memory/prefill_region.h"
#include "model/head_parts.h"

namespace winnow {

// The whole KV of one prompt while it is prefilled, [layer][kv_head][prompt position] rows; given back after hand-over
// to the cache rank. Host memory, or a piece of devices' (each the same with its kv heads alone), which the forward
// pass writes itself. Where prefill goes layer by layer: the KV of one layer after the other in one place, and the
// tokens' residuals, which every device has. Engine thread only.
class PrefillArena {
 public:
  // In host memory. `hidden_size` of the residuals: for prefill layer by layer; 0: for all layers' KV.
  static absl::StatusOr<PrefillArena> Create(const KvLayout& layout, uint32_t prompt_tokens, uint32_t hidden_size = 0) {
    PrefillArena arena(layout, prompt_tokens, hidden_size, /*parts=*/1);
    void* memory = mmap(nullptr, arena.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot map a prefill arena of ", arena.bytes_, " bytes"));
    }
    madvise(memory, arena.bytes_, MADV_HUGEPAGE);
    arena.memory_ = static_cast<std::byte*>(memory);
    return arena;
  }
  // The same in device memory. RESOURCE_EXHAUSTED when no part of `region`, which must outlive the arena, is large
  // enough.
  static absl::StatusOr<PrefillArena> CreateIn(PrefillRegion& region, const KvLayout& layout, uint32_t prompt_tokens,
                                               uint32_t hidden_size = 0) {
    PrefillArena arena(layout, prompt_tokens, hidden_size, region.num_parts());
    WINNOW_ASSIGN_OR_RETURN(arena.offset_, region.Take(arena.bytes_));
    arena.region_ = &region;
    return arena;
  }
  PrefillArena(PrefillArena&& other) noexcept { *this = std::move(other); }
  PrefillArena& operator=(PrefillArena&& other) noexcept {
    std::swap(layout_, other.layout_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(prompt_tokens_, other.prompt_tokens_);
    std::swap(region_, other.region_);
    std::swap(offset_, other.offset_);
    std::swap(kv_bytes_, other.kv_bytes_);
    std::swap(hidden_size_, other.hidden_size_);
    std::swap(layer, other.layer);
    std::swap(layer_position, other.layer_position);
    std::swap(chunk_first, other.chunk_first);
    std::swap(chunk_end, other.chunk_end);
    return *this;
  }
  ~PrefillArena() {
    if (region_ != nullptr) region_->GiveBack(offset_);
    if (memory_ != nullptr) munmap(memory_, bytes_);
  }

  bool on_device() const { return region_ != nullptr; }
  size_t bytes() const { return bytes_; }
  uint32_t prompt_tokens() const { return prompt_tokens_; }
  // By layer: of whichever layer is under way.
  std::byte* row(int layer, int kv_head, uint32_t position) const {
    if (region_ != nullptr) return DeviceRow(layer, kv_head, position);
    return memory_ + (layout_.list(by_layer() ? 0 : layer, kv_head) * prompt_tokens_ + position) * layout_.row_bytes();
  }
  // The part of the devices' memory that has this head.
  int part_of(int kv_head) const { return PartOf(layout_, kv_head, num_parts()); }

  bool by_layer() const { return hidden_size_ > 0; }
  // By layer: what of bytes() is KV, and the residuals [prompt_tokens, hidden size] from a position on, of each device.
  size_t layer_kv_bytes() const { return kv_bytes_; }
  std::vector<float*> Residuals(uint32_t position) const {
    std::vector<float*> places;
    for (int part = 0; part < num_parts(); ++part) {
      std::byte* const piece = region_ == nullptr ? memory_ : region_->memory(part) + offset_;
      float* const residuals = reinterpret_cast<float*>(piece + kv_bytes_ / num_parts());
      places.push_back(residuals + static_cast<size_t>(position) * hidden_size_);
    }
    return places;
  }
  // How far it is, by layer, or with the chunk under way: positions of [chunk_first, chunk_end). Those below
  // layer_position have gone through layers [0, layer], the others through those before.
  int layer = 0;
  uint32_t layer_position = 0;
  // Otherwise than by layer; chunk_end is 0 between two chunks.
  uint32_t chunk_first = 0, chunk_end = 0;
  bool in_chunk() const { return chunk_end > 0; }

  // Host memory only: copies what a chunk computed: kv_rows [count, num_kv_heads, 2 * head_dim] of positions from
  // `first` on.
  void Store(int layer, uint32_t first, uint32_t count, const std::byte* kv_rows) {
    const size_t row_bytes = layout_.row_bytes();
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      std::byte* out = row(layer, head, first);
      for (uint32_t i = 0; i < count; ++i) {
        std::memcpy(out + i * row_bytes, kv_rows + (static_cast<size_t>(i) * layout_.num_kv_heads + head) * row_bytes,
                    row_bytes);
      }
    }
  }

 private:
  PrefillArena(const KvLayout& layout, uint32_t prompt_tokens, uint32_t hidden_size, int parts)
      : layout_(layout),
        prompt_tokens_(prompt_tokens),
        kv_bytes_(hidden_size > 0 ? PrefillSizing::LayerKvBytes(layout, prompt_tokens)
                                  : PrefillSizing::AllKvBytes(layout, prompt_tokens)),
        hidden_size_(hidden_size),
        bytes_(kv_bytes_ + parts * PrefillSizing::ResidualBytes(hidden_size, prompt_tokens)) {}
  int num_parts() const { return region_ == nullptr ? 1 : region_->num_parts(); }
  std::byte* DeviceRow(int layer, int kv_head, uint32_t position) const {
    const size_t heads = layout_.num_kv_heads / region_->num_parts();
    const size_t list = (by_layer() ? 0 : layer) * heads + kv_head % heads;
    return region_->memory(part_of(kv_head)) + offset_ + (list * prompt_tokens_ + position) * layout_.row_bytes();
  }

  KvLayout layout_;
  uint32_t prompt_tokens_ = 0;
  size_t kv_bytes_ = 0;  // of all layers or of one
  uint32_t hidden_size_ = 0;
  size_t bytes_ = 0;  // with the residuals
  std::byte* memory_ = nullptr;
  PrefillRegion* region_ = nullptr;
  size_t offset_ = 0;  // of its piece
};

}  // namespace winnow
