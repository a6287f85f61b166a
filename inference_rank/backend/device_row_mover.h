#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "inference_rank/memory/row_mover.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// Moves rows into the slots of a GPU. Rows of host memory are copied to pinned memory at once and fetched from there by
// the GPU, or from where they lie, if that is pinned and kept; Flush launches everything that has been noted as one
// kernel, or as several where a later move touches what an earlier one reads or writes. Rows that are no slots (of a
// prompt in prefill) are copied to slots; they come from the host or from slots, many at once, behind the moves that
// have been noted: a copy on the stream takes them from where they lie. Errors of launches show where the stream is
// synchronised next.
class DeviceRowMover final : public RowMover {
 public:
  struct Options {
    size_t row_bytes = 0;
    // Of rows of int8, whose slots have their scales apart (device::Int8Slots): the bytes of their codes. Others: 0.
    size_t int8_code_bytes = 0;
    size_t staging_bytes = size_t{32} << 20;  // pinned; when it is full, a move waits for the GPU
  };

  // Slots are [num_slots] rows at `slots`; device, stream and memory must outlive the mover.
  static absl::StatusOr<std::unique_ptr<DeviceRowMover>> Create(const device::DeviceTable& table,
                                                                device::Device& device, device::Stream stream,
                                                                void* slots, size_t num_slots, const Options& options);

  void Write(void* to, const void* host_row) override;
  void WriteRows(std::span<const uint32_t> slots, uint32_t first_slot, const void* host_rows,
                 const ParallelFor& threads, const std::shared_ptr<const void>& keep) override;
  void Copy(void* to, const void* device_row) override;
  void CopyBeside(std::span<const BlockCopy> blocks, size_t block_bytes) override;
  void WriteBeside(const RowPieces& pieces, std::shared_ptr<const void> keep) override;
  bool ReleaseRead() override;
  void ReleaseAll() override;

  // Called before anything is launched on the stream, which it may make wait for work of other streams.
  void BeforeLaunches(std::function<void()> call) { before_launches_ = std::move(call); }
  // Launches what has been noted.
  void Flush();
  // How many moves have been launched so far: what an event that is recorded now covers.
  uint64_t num_launched() const { return num_launched_; }
  // The GPU has done the first `num_launched` moves: their staging may be used again.
  void Recycle(uint64_t num_launched) { num_done_ = std::max(num_done_, num_launched); }
  size_t pinned_bytes() const { return pinned_->bytes(); }

 private:
  // What the moves that are not launched do with a slot: these bits, if the others say that they are of this launch.
  // Otherwise nothing.
  using Mark = uint16_t;
  static constexpr Mark kRead = 1, kWritten = 2, kThisLaunch = 4;
  DeviceRowMover(const device::DeviceTable& table, device::Device& device, device::Stream stream, void* slots,
                 size_t num_slots, const Options& options);
  void Add(void* to, const void* from);
  // Adds a move to that slot of a row of host memory.
  void AddRow(size_t slot, const void* from);
  void AddRows(std::span<const uint32_t> slots, uint32_t first_slot, const std::byte* from);
  // Holds something until what has been launched is done.
  void Keep(std::shared_ptr<const void> rows);
  Mark MarkOf(size_t slot) const { return marks_[slot] >= launch_ ? marks_[slot] & (kRead | kWritten) : 0; }
  void SetMark(size_t slot, Mark bit) { marks_[slot] = launch_ | MarkOf(slot) | bit; }
  void ClearMarks();
  // Where a move lies, and the row that is staged for it.
  size_t IndexOf(uint64_t move) const { return move & (max_moves_ - 1); }
  void MakeRoom();
  void LaunchNoted();
  std::byte* Staged(uint64_t move) const { return rows_ + IndexOf(move) * row_bytes_; }
  void Launch(uint64_t end, size_t bytes_each);
  // The number of the slot at that address; no slot's for other memory.
  size_t SlotAt(const void* address) const;

  const device::DeviceTable& table_;
  device::Device& device_;
  const device::Stream stream_;
  std::byte* const slots_;
  const size_t row_bytes_;
  const device::Int8Slots int8_slots_;
  std::function<void()> before_launches_ = [] {};
  uint32_t max_moves_ = 0;  // a power of two
  std::unique_ptr<device::DeviceMemory> pinned_;
  device::RowMove* moves_ = nullptr;  // [max_moves]
  std::byte* rows_ = nullptr;         // [max_moves] rows: that of a move, if it comes from the host, at its index

  // What the last copies from host memory that is not staged have read, by their number % kMostKept.
  struct Kept {
    std::unique_ptr<device::Event> copied;
    std::shared_ptr<const void> rows;
  };
  static constexpr size_t kMostKept = 8;
  std::array<Kept, kMostKept> kept_;
  size_t num_kept_ = 0;
  // What moves that have been noted, and perhaps launched, read.
  std::vector<std::shared_ptr<const void>> reading_;
  size_t reading_bytes_ = 0;

  // Since the start.
  uint64_t num_moves_ = 0;  // noted
  uint64_t num_launched_ = 0;
  uint64_t num_done_ = 0;
  std::vector<Mark> marks_;    // [num_slots]
  Mark launch_ = kThisLaunch;  // a multiple of that, which grows
};

}  // namespace winnow
