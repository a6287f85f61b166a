#include "inference_rank/backend/device_row_mover.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace winnow {

DeviceRowMover::DeviceRowMover(const cuda::CudaTable& table, cuda::Device& device, cuda::Stream stream, void* slots,
                               size_t num_slots, const Options& options)
    : table_(table),
      device_(device),
      stream_(stream),
      slots_(static_cast<std::byte*>(slots)),
      row_bytes_(options.row_bytes),
      int8_slots_({.codes = options.int8_code_bytes > 0 ? slots : nullptr,
                   .num_slots = num_slots,
                   .code_bytes = options.int8_code_bytes}),
      marks_(num_slots, 0) {}

absl::StatusOr<std::unique_ptr<DeviceRowMover>> DeviceRowMover::Create(const cuda::CudaTable& table,
                                                                       cuda::Device& device, cuda::Stream stream,
                                                                       void* slots, size_t num_slots,
                                                                       const Options& options) {
  std::unique_ptr<DeviceRowMover> mover(new DeviceRowMover(table, device, stream, slots, num_slots, options));
  const bool is_int8 = options.int8_code_bytes > 0;
  WINNOW_CHECK(is_int8 ? options.row_bytes == mover->int8_slots_.row_bytes() && options.row_bytes % 8 == 0
                       : options.row_bytes % 16 == 0);
  mover->max_moves_ = static_cast<uint32_t>(std::max<size_t>(options.staging_bytes / options.row_bytes, 64));
  const size_t moves_bytes = (mover->max_moves_ * sizeof(cuda::RowMove) + 255) / 256 * 256;
  WINNOW_ASSIGN_OR_RETURN(mover->pinned_, device.AllocatePinned(moves_bytes + mover->max_moves_ * options.row_bytes));
  mover->moves_ = static_cast<cuda::RowMove*>(mover->pinned_->data());
  mover->rows_ = static_cast<std::byte*>(mover->pinned_->data()) + moves_bytes;
  for (Kept& kept : mover->kept_) kept.copied = device.NewEvent();
  return mover;
}

uint8_t* DeviceRowMover::MarksOf(const void* address) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(slots_);
  // An address below the slots gives an offset beyond them.
  return offset / row_bytes_ < marks_.size() ? &marks_[offset / row_bytes_] : nullptr;
}

void DeviceRowMover::Write(void* to, const void* host_row) {
  MakeRoom();
  std::byte* const staged = Staged(num_moves_);
  std::memcpy(staged, host_row, row_bytes_);
  Add(to, staged);
}

// All rows are staged before the first is noted, because noting may launch what was noted before.
void DeviceRowMover::WriteRows(std::span<const uint32_t> slots, uint32_t first_slot, const void* host_rows,
                               const ParallelFor& threads) {
  const auto* from = static_cast<const std::byte*>(host_rows);
  while (!slots.empty()) {
    MakeRoom();
    const size_t count = std::min<size_t>(slots.size(), num_done_ + max_moves_ - num_moves_);
    ForParts(threads, count, kCopiedTogether, [&](size_t first, size_t number) {
      for (size_t i = first; i < first + number; ++i) {
        std::memcpy(Staged(num_moves_ + i), from + i * row_bytes_, row_bytes_);
      }
    });
    for (const uint32_t slot : slots.first(count)) AddStaged(slot - first_slot);
    slots = slots.subspan(count);
    from += count * row_bytes_;
  }
}

void DeviceRowMover::Copy(void* to, const void* device_row) {
  MakeRoom();
  Add(to, device_row);
}

// Launched by the round of the staging of moves, which they share with what is noted.
void DeviceRowMover::CopyBeside(std::span<const BlockCopy> blocks, size_t block_bytes) {
  WINNOW_CHECK(block_bytes % row_bytes_ == 0);
  if (blocks.empty()) return;
  Flush();
  while (!blocks.empty()) {
    MakeRoom();
    const uint64_t until_round_ends = max_moves_ - num_moves_ % max_moves_,
                   until_full = num_done_ + max_moves_ - num_moves_;
    const size_t count = std::min<size_t>(blocks.size(), std::min(until_round_ends, until_full));
    for (const BlockCopy& block : blocks.first(count)) {
      moves_[num_moves_++ % max_moves_] = {.from = block.from, .to = block.to};
    }
    Launch(num_moves_, block_bytes);
    blocks = blocks.subspan(count);
  }
}

void DeviceRowMover::WriteBeside(const RowPieces& pieces, std::shared_ptr<const void> keep) {
  Flush();  // moves that read or write the same memory come before
  Kept& kept = kept_[num_kept_++ % kMostKept];
  // An error is sticky: whoever synchronises next sees it again.
  if (kept.rows != nullptr) (void)kept.copied->Wait();
  device_.Bind();
  device_.CopyRowsAsync(pieces.to, pieces.to_stride, pieces.from, pieces.from_stride, pieces.piece_bytes,
                        pieces.num_pieces, stream_);
  kept.copied->Record(stream_);
  kept.rows = std::move(keep);
}

void DeviceRowMover::ReleaseRead() {
  for (Kept& kept : kept_) {
    // After an error nothing is read any more.
    if (kept.rows != nullptr && kept.copied->HasPassed().value_or(true)) kept.rows.reset();
  }
}

void DeviceRowMover::ReleaseAll() {
  for (Kept& kept : kept_) {
    if (kept.rows != nullptr) (void)kept.copied->Wait();
    kept.rows.reset();
  }
}

// Moves of one launch are not ordered: one that meets an earlier one starts the next launch.
void DeviceRowMover::Add(void* to, const void* from) {
  uint8_t* const source = MarksOf(from);
  uint8_t* const target = MarksOf(to);
  WINNOW_CHECK(target != nullptr);
  if (*target != 0 || (source != nullptr && (*source & kWritten) != 0)) Flush();
  SetMark(target, kWritten);
  if (source != nullptr) SetMark(source, kRead);
  moves_[num_moves_++ % max_moves_] = {.from = from, .to = to};
}

void DeviceRowMover::AddStaged(size_t slot) {
  WINNOW_CHECK(slot < marks_.size());
  if (marks_[slot] != 0) Flush();
  SetMark(&marks_[slot], kWritten);
  moves_[num_moves_ % max_moves_] = {.from = Staged(num_moves_), .to = slots_ + slot * row_bytes_};
  ++num_moves_;
}

void DeviceRowMover::MakeRoom() {
  if (num_moves_ - num_done_ < max_moves_) return;
  Flush();
  // An error is sticky: whoever synchronises next sees it again.
  (void)device_.Synchronize(stream_);
  num_done_ = num_launched_;
}

// Up to move `end`, which lies in the same round of the staging.
void DeviceRowMover::Launch(uint64_t end, size_t bytes_each) {
  device_.Bind();  // the engine's thread may have written to another GPU before
  table_.rows->move_rows(stream_, {.moves = moves_ + num_launched_ % max_moves_,
                                   .num_moves = static_cast<uint32_t>(end - num_launched_),
                                   .row_bytes = bytes_each,
                                   .int8_slots = int8_slots_});
  num_launched_ = end;
}

void DeviceRowMover::Flush() {
  if (num_launched_ == num_moves_) return;
  const uint64_t round_end = (num_launched_ / max_moves_ + 1) * max_moves_;
  if (round_end < num_moves_) Launch(round_end, row_bytes_);
  Launch(num_moves_, row_bytes_);
  for (uint8_t* marks : touched_) *marks = 0;
  touched_.clear();
}

}  // namespace winnow
