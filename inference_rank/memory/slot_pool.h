#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/parallel_for.h"
#include "common/base/status.h"
#include "inference_rank/memory/row_mover.h"

namespace winnow {

// The one memory pool of resident KV rows of an inference rank, handed out in pages of kSlotPageTokens slots. A slot
// holds one row. The slots lie in host memory, or in that of GPUs, where RowMovers fill them. Not thread-safe: owned by
// the engine thread.
//
// Behind the pages of one GPU there may be others of the same range of addresses that lie in pinned host memory, where
// kernels read and write them over PCIe (Device::AllocateTiered). They are the last in number.
//
// Of several GPUs each has a part of the kv heads (PartOf in head_parts.h), and as many pages: who takes page i takes
// page i of all of them. Slots are numbered through: those of part k begin at first_slot(k).
enum class SlotPlace : uint8_t { kFront, kHostBehindGpu };

class SlotPool {
 public:
  // One GPU's num_pages * 64 rows, and what fills them.
  struct Part {
    std::byte* rows = nullptr;
    RowMover* mover = nullptr;  // null: host memory
  };

  // Maps num_pages * 64 rows; memory is touched only when rows are written.
  static absl::StatusOr<SlotPool> Create(size_t row_bytes, uint32_t num_pages);
  // Over device memory, num_pages of each part, of one part's the last `host_pages` in host memory. Memory and movers
  // stay the caller's and outlive the pool.
  static SlotPool OnDevices(size_t row_bytes, uint32_t num_pages, std::vector<Part> parts, uint32_t host_pages = 0);
  SlotPool(SlotPool&& other) noexcept;
  SlotPool& operator=(SlotPool&& other) noexcept;
  ~SlotPool();

  int num_parts() const { return static_cast<int>(parts_.size()); }
  uint32_t first_slot(int part) const { return static_cast<uint32_t>(part) * num_pages_ * kSlotPageTokens; }
  uint32_t num_pages() const { return num_pages_; }  // of each part
  uint32_t num_pages(SlotPlace place) const {
    return place == SlotPlace::kFront ? front_pages_ : num_pages_ - front_pages_;
  }
  uint32_t free_pages() const { return free_pages(SlotPlace::kFront) + free_pages(SlotPlace::kHostBehindGpu); }
  uint32_t free_pages(SlotPlace place) const { return static_cast<uint32_t>(FreeIn(place).size()); }
  SlotPlace place_of(uint32_t page) const {
    return page < front_pages_ ? SlotPlace::kFront : SlotPlace::kHostBehindGpu;
  }
  size_t row_bytes() const { return row_bytes_; }
  void* rows() const { return parts_[0].rows; }
  std::byte* row(uint32_t slot) const { return RowIn(PartOf(slot), slot); }

  // Fill a slot with a row of host memory, or of the memory that the slot lies in (another slot, a prefill arena). In
  // the order of the calls; on a device, before the attention that is enqueued next.
  void Write(uint32_t slot, const void* host_row) {
    const int part = PartOf(slot);
    if (RowMover* const mover = parts_[part].mover; mover != nullptr) {
      mover->Write(RowIn(part, slot), host_row);
    } else {
      std::memcpy(RowIn(part, slot), host_row, row_bytes_);
    }
  }
  // Write for rows that lie one behind the other, to slots of one part. `keep`, which may be null: as RowMover says.
  void WriteRows(std::span<const uint32_t> slots, const std::byte* host_rows, const std::shared_ptr<const void>& keep);
  // Threads of the engine that many rows are copied by.
  void UseThreads(ParallelFor threads) { threads_ = std::move(threads); }
  void Copy(uint32_t slot, const void* resident_row) {
    const int part = PartOf(slot);
    if (RowMover* const mover = parts_[part].mover; mover != nullptr) {
      mover->Copy(RowIn(part, slot), resident_row);
    } else {
      std::memcpy(RowIn(part, slot), resident_row, row_bytes_);
    }
  }

  // Blocks of a part's slots to memory of the same device that is no slot, of a prefill arena. In the order of the
  // calls, too.
  void CopyBeside(int part, std::span<const BlockCopy> blocks, size_t block_bytes) {
    if (RowMover* const mover = parts_[part].mover; mover != nullptr) return mover->CopyBeside(blocks, block_bytes);
    for (const BlockCopy& block : blocks) std::memcpy(block.to, block.from, block_bytes);
  }
  // Rows of host memory to a part's memory that is no slot, of a prefill arena. On a device, as RowMover says.
  void WriteBeside(int part, const RowPieces& pieces, std::shared_ptr<const void> keep) {
    if (RowMover* const mover = parts_[part].mover; mover != nullptr) {
      return mover->WriteBeside(pieces, std::move(keep));
    }
    for (size_t i = 0; i < pieces.num_pieces; ++i) {
      std::memcpy(static_cast<std::byte*>(pieces.to) + i * pieces.to_stride,
                  static_cast<const std::byte*>(pieces.from) + i * pieces.from_stride, pieces.piece_bytes);
    }
  }
  bool ReleaseRead() {
    bool all = true;
    for (const Part& part : parts_) {
      if (part.mover != nullptr) all &= part.mover->ReleaseRead();
    }
    return all;
  }
  void ReleaseAll() {
    for (const Part& part : parts_) {
      if (part.mover != nullptr) part.mover->ReleaseAll();
    }
  }

  // RESOURCE_EXHAUSTED, with nothing taken, when fewer are free; without a place those in front go first.
  absl::StatusOr<std::vector<uint32_t>> Allocate(uint32_t pages);
  absl::StatusOr<std::vector<uint32_t>> Allocate(uint32_t pages, SlotPlace place);
  void Free(const std::vector<uint32_t>& pages);

 private:
  SlotPool() = default;
  void FreeAll();
  const std::vector<uint32_t>& FreeIn(SlotPlace place) const { return free_[static_cast<size_t>(place)]; }
  void Take(uint32_t pages, SlotPlace place, std::vector<uint32_t>& taken);
  int PartOf(uint32_t slot) const {
    return parts_.size() == 1 ? 0 : static_cast<int>(slot / (num_pages_ * kSlotPageTokens));
  }
  std::byte* RowIn(int part, uint32_t slot) const {
    return parts_[part].rows + static_cast<size_t>(slot - first_slot(part)) * row_bytes_;
  }

  std::vector<Part> parts_;
  size_t row_bytes_ = 0;
  size_t mapped_bytes_ = 0;  // 0: not ours
  uint32_t num_pages_ = 0;
  uint32_t front_pages_ = 0;
  std::array<std::vector<uint32_t>, 2> free_;  // [SlotPlace]
  ParallelFor threads_;                        // may be empty
};

}  // namespace winnow
