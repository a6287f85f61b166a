#include "inference_rank/backend/device_row_mover.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace winnow {
namespace {

// Rows that are fetched from where they lie are fetched as soon as there are so many.
constexpr size_t kFetchedTogether = size_t{1} << 20;
// Marks lie as far apart as slots: they are asked for so many rows before they are needed.
constexpr size_t kMarksAhead = 24;

}  // namespace

DeviceRowMover::DeviceRowMover(const device::DeviceTable& table, device::Device& device, device::Stream stream,
                               void* slots, size_t num_slots, const Options& options)
    : table_(table),
      device_(device),
      stream_(stream),
      slots_(static_cast<std::byte*>(slots)),
      row_bytes_(options.row_bytes),
      int8_slots_({.codes = options.int8_code_bytes > 0 ? slots : nullptr,
                   .num_slots = num_slots,
                   .code_bytes = options.int8_code_bytes}),
      marks_(num_slots, 0) {}

absl::StatusOr<std::unique_ptr<DeviceRowMover>> DeviceRowMover::Create(const device::DeviceTable& table,
                                                                       device::Device& device, device::Stream stream,
                                                                       void* slots, size_t num_slots,
                                                                       const Options& options) {
  std::unique_ptr<DeviceRowMover> mover(new DeviceRowMover(table, device, stream, slots, num_slots, options));
  const bool is_int8 = options.int8_code_bytes > 0;
  WINNOW_CHECK(is_int8 ? options.row_bytes == mover->int8_slots_.row_bytes() && options.row_bytes % 8 == 0
                       : options.row_bytes % 16 == 0);
  mover->max_moves_ =
      static_cast<uint32_t>(std::bit_floor(std::max<size_t>(options.staging_bytes / options.row_bytes, 64)));
  const size_t moves_bytes = (mover->max_moves_ * sizeof(device::RowMove) + 255) / 256 * 256;
  WINNOW_ASSIGN_OR_RETURN(mover->pinned_, device.AllocatePinned(moves_bytes + mover->max_moves_ * options.row_bytes));
  mover->moves_ = static_cast<device::RowMove*>(mover->pinned_->data());
  mover->rows_ = static_cast<std::byte*>(mover->pinned_->data()) + moves_bytes;
  for (Kept& kept : mover->kept_) kept.copied = device.NewEvent();
  return mover;
}

size_t DeviceRowMover::SlotAt(const void* address) const {
  // An address below the slots gives one beyond them.
  return (reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(slots_)) / row_bytes_;
}

void DeviceRowMover::Write(void* to, const void* host_row) {
  MakeRoom();
  std::byte* const staged = Staged(num_moves_);
  std::memcpy(staged, host_row, row_bytes_);
  Add(to, staged);
}

void DeviceRowMover::WriteRows(std::span<const uint32_t> slots, uint32_t first_slot, const void* host_rows,
                               const ParallelFor& threads, const std::shared_ptr<const void>& keep) {
  const auto* from = static_cast<const std::byte*>(host_rows);
  if (keep != nullptr) {
    AddRows(slots, first_slot, from);
    // After the moves: those that had to be launched meanwhile are covered, too.
    if (reading_.empty() || reading_.back() != keep) reading_.push_back(keep);
    reading_bytes_ += slots.size() * row_bytes_;
    // Early enough for the rows to be fetched while others come.
    if (reading_bytes_ >= kFetchedTogether) Flush();
    return;
  }
  // All rows are staged before the first is noted, because noting may launch what was noted before.
  while (!slots.empty()) {
    MakeRoom();
    const size_t count = std::min<size_t>(slots.size(), num_done_ + max_moves_ - num_moves_);
    ForParts(threads, count, kCopiedTogether, [&](size_t first, size_t number) {
      for (size_t i = first; i < first + number; ++i) {
        std::memcpy(Staged(num_moves_ + i), from + i * row_bytes_, row_bytes_);
      }
    });
    for (const uint32_t slot : slots.first(count)) AddRow(slot - first_slot, Staged(num_moves_));
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
      moves_[IndexOf(num_moves_++)] = {.from = block.from, .to = block.to};
    }
    Launch(num_moves_, block_bytes);
    blocks = blocks.subspan(count);
  }
}

void DeviceRowMover::WriteBeside(const RowPieces& pieces, std::shared_ptr<const void> keep) {
  Flush();  // moves that read or write the same memory come before
  before_launches_();
  device_.Bind();
  device_.CopyRowsAsync(pieces.to, pieces.to_stride, pieces.from, pieces.from_stride, pieces.piece_bytes,
                        pieces.num_pieces, stream_);
  Keep(std::move(keep));
}

void DeviceRowMover::Keep(std::shared_ptr<const void> rows) {
  Kept& kept = kept_[num_kept_++ % kMostKept];
  // An error is sticky: whoever synchronises next sees it again.
  if (kept.rows != nullptr) (void)kept.copied->Wait();
  kept.copied->Record(stream_);
  kept.rows = std::move(rows);
}

bool DeviceRowMover::ReleaseRead() {
  bool all = reading_.empty();
  for (Kept& kept : kept_) {
    if (kept.rows == nullptr) continue;
    // After an error nothing is read any more.
    if (kept.copied->HasPassed().value_or(true)) {
      kept.rows.reset();
    } else {
      all = false;
    }
  }
  return all;
}

void DeviceRowMover::ReleaseAll() {
  Flush();
  for (Kept& kept : kept_) {
    if (kept.rows != nullptr) (void)kept.copied->Wait();
    kept.rows.reset();
  }
}

// Moves of one launch are not ordered: one that meets an earlier one starts the next launch.
void DeviceRowMover::Add(void* to, const void* from) {
  const size_t source = SlotAt(from), target = SlotAt(to);
  const bool from_slot = source < marks_.size();
  if (from_slot && (MarkOf(source) & kWritten) != 0) Flush();
  AddRow(target, from);
  if (from_slot) SetMark(source, kRead);
}

void DeviceRowMover::AddRow(size_t slot, const void* from) {
  WINNOW_CHECK(slot < marks_.size());
  if (MarkOf(slot) != 0) Flush();
  SetMark(slot, kWritten);
  moves_[IndexOf(num_moves_++)] = {.from = from, .to = slots_ + slot * row_bytes_};
}

// AddRow for each, in a loop that keeps what it needs in registers: one thread notes thousands of rows of a layer while
// the GPU waits for them.
void DeviceRowMover::AddRows(std::span<const uint32_t> slots, uint32_t first_slot, const std::byte* from) {
  while (!slots.empty()) {
    MakeRoom();
    const uint64_t until_round_ends = max_moves_ - IndexOf(num_moves_);
    const size_t most = std::min<uint64_t>({slots.size(), until_round_ends, num_done_ + max_moves_ - num_moves_});
    device::RowMove* const moves = moves_ + IndexOf(num_moves_);
    Mark* const marks = marks_.data();
    const size_t num_marks = marks_.size(), row_bytes = row_bytes_;
    std::byte* const to = slots_;
    const Mark launch = launch_;
    size_t count = 0;
    for (; count < most; ++count) {
      const size_t slot = slots[count] - first_slot;
      WINNOW_CHECK(slot < num_marks);
      if (count + kMarksAhead < most) __builtin_prefetch(marks + (slots[count + kMarksAhead] - first_slot), /*rw=*/1);
      if (marks[slot] >= launch && (marks[slot] & (kRead | kWritten)) != 0) break;
      marks[slot] = launch | kWritten;
      moves[count] = {.from = from + count * row_bytes, .to = to + slot * row_bytes};
    }
    num_moves_ += count;
    slots = slots.subspan(count);
    from += count * row_bytes;
    if (count < most) Flush();  // its slot is that of a move before
  }
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
  before_launches_();
  device_.Bind();  // the engine's thread may have written to another GPU before
  table_.rows->move_rows(stream_, {.moves = moves_ + IndexOf(num_launched_),
                                   .num_moves = static_cast<uint32_t>(end - num_launched_),
                                   .row_bytes = bytes_each,
                                   .int8_slots = int8_slots_});
  num_launched_ = end;
}

void DeviceRowMover::Flush() {
  LaunchNoted();
  if (reading_.empty()) return;
  Keep(std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(reading_)));
  reading_.clear();
  reading_bytes_ = 0;
}

void DeviceRowMover::LaunchNoted() {
  if (num_launched_ == num_moves_) return;
  const uint64_t round_end = (num_launched_ / max_moves_ + 1) * max_moves_;
  if (round_end < num_moves_) Launch(round_end, row_bytes_);
  Launch(num_moves_, row_bytes_);
  ClearMarks();
}

void DeviceRowMover::ClearMarks() {
  launch_ = static_cast<Mark>(launch_ + kThisLaunch);
  if (launch_ != 0) return;
  std::fill(marks_.begin(), marks_.end(), 0);
  launch_ = kThisLaunch;
}

}  // namespace winnow
