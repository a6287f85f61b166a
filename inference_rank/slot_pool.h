#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/row_mover.h"

namespace winnow {

// The one memory pool of resident KV rows of an inference rank, handed out in pages of kSlotPageTokens slots. A slot
// holds one row. The slots lie in host memory, or in a device's, where a RowMover fills them. Not thread-safe: owned by
// the engine thread.
class SlotPool {
 public:
  // Maps num_pages * 64 rows; memory is touched only when rows are written.
  static absl::StatusOr<SlotPool> Create(size_t row_bytes, uint32_t num_pages);
  // Over num_pages * 64 rows of device memory. Memory and mover stay the caller's and outlive the pool.
  static SlotPool OnDevice(size_t row_bytes, uint32_t num_pages, void* rows, RowMover& mover);
  SlotPool(SlotPool&& other) noexcept;
  SlotPool& operator=(SlotPool&& other) noexcept;
  ~SlotPool();

  uint32_t num_pages() const { return num_pages_; }
  uint32_t free_pages() const { return static_cast<uint32_t>(free_.size()); }
  size_t row_bytes() const { return row_bytes_; }
  void* rows() const { return rows_; }
  std::byte* row(uint32_t slot) const { return rows_ + static_cast<size_t>(slot) * row_bytes_; }

  // Fill a slot with a row of host memory, or of the slots' own memory (another slot, a prefill arena). In the order of
  // the calls; on a device, before the attention that is enqueued next.
  void Write(uint32_t slot, const void* host_row) {
    if (mover_ == nullptr) {
      std::memcpy(row(slot), host_row, row_bytes_);
    } else {
      mover_->Write(row(slot), host_row);
    }
  }
  void Copy(uint32_t slot, const void* resident_row) {
    if (mover_ == nullptr) {
      std::memcpy(row(slot), resident_row, row_bytes_);
    } else {
      mover_->Copy(row(slot), resident_row);
    }
  }

  // The same for a row of the slots' own memory that is no slot: of a prefill arena.
  void WriteBeside(std::byte* to, const void* host_row) {
    if (mover_ == nullptr) {
      std::memcpy(to, host_row, row_bytes_);
    } else {
      mover_->Write(to, host_row);
    }
  }

  // RESOURCE_EXHAUSTED, with nothing taken, when fewer are free.
  absl::StatusOr<std::vector<uint32_t>> Allocate(uint32_t pages);
  void Free(const std::vector<uint32_t>& pages);

 private:
  SlotPool() = default;
  void FreeAll();
  std::byte* rows_ = nullptr;
  size_t row_bytes_ = 0;
  size_t mapped_bytes_ = 0;  // 0: not ours
  RowMover* mover_ = nullptr;
  uint32_t num_pages_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace winnow
