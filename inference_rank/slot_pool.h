#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"

namespace winnow {

// The one memory pool of resident KV rows of an inference rank, handed out in pages of kSlotPageTokens slots. A slot
// holds one row. Not thread-safe: owned by the engine thread.
class SlotPool {
 public:
  // Maps num_pages * 64 rows; memory is touched only when rows are written.
  static absl::StatusOr<SlotPool> Create(size_t row_bytes, uint32_t num_pages);
  SlotPool(SlotPool&& other) noexcept;
  SlotPool& operator=(SlotPool&& other) noexcept;
  ~SlotPool();

  uint32_t num_pages() const { return num_pages_; }
  uint32_t free_pages() const { return static_cast<uint32_t>(free_.size()); }
  size_t row_bytes() const { return row_bytes_; }
  void* rows() const { return rows_; }
  std::byte* row(uint32_t slot) const { return rows_ + static_cast<size_t>(slot) * row_bytes_; }

  // RESOURCE_EXHAUSTED, with nothing taken, when fewer are free.
  absl::StatusOr<std::vector<uint32_t>> Allocate(uint32_t pages);
  void Free(const std::vector<uint32_t>& pages);

 private:
  SlotPool() = default;
  std::byte* rows_ = nullptr;
  size_t row_bytes_ = 0;
  size_t mapped_bytes_ = 0;
  uint32_t num_pages_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace winnow
