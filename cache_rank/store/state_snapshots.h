#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cache_rank/store/kv_block_pool.h"
#include "common/base/status.h"

namespace winnow {

// What a sequence of a hybrid model kept in the place of rows when all positions below `position` had been computed:
// bytes that mean nothing here, in blocks of the pool, each with a checksum made of what arrived. One thread.
class StateSnapshot {
 public:
  StateSnapshot(uint32_t position, uint64_t bytes) : position_(position), bytes_(bytes) {}

  uint32_t position() const { return position_; }
  bool is_complete() const { return filled_ == bytes_; }
  uint64_t filled() const { return filled_; }
  // Appends what follows; there is room for it in `blocks` that were added.
  void Append(std::span<const std::byte> piece, size_t block_bytes);
  void AddBlock(KvBlock block) { blocks_.push_back(std::move(block)); }
  // Whether every byte is still what arrived.
  bool IsIntact(size_t block_bytes) const;
  // Copies bytes [offset, offset + to.size()) of a complete snapshot.
  void Read(uint64_t offset, std::span<std::byte> to, size_t block_bytes) const;
  std::vector<KvBlock> TakeBlocks() && { return std::move(blocks_); }

 private:
  const uint32_t position_;
  const uint64_t bytes_;
  uint64_t filled_ = 0;
  std::vector<KvBlock> blocks_;
  std::vector<uint32_t> checksums_;  // of each block, what is filled of it
};

// The snapshots of one sequence: the two newest, or one and what has come of the next. Their blocks are reserved when
// the sequence is opened, so that there is always room for one more. Forks share snapshots. One thread.
class StateSnapshots {
 public:
  StateSnapshots() = default;  // of a sequence that keeps no state
  // Blocks that are reserved for states of so many bytes.
  static size_t BlocksFor(uint64_t state_bytes, size_t block_bytes) {
    return kKept * BlocksOfOne(state_bytes, block_bytes);
  }
  // RESOURCE_EXHAUSTED when the blocks for states of `state_bytes` do not fit.
  static absl::StatusOr<StateSnapshots> Create(KvBlockPool* pool, uint64_t state_bytes);
  StateSnapshots(StateSnapshots&&) = default;
  StateSnapshots& operator=(StateSnapshots&&) = default;

  uint64_t state_bytes() const { return state_bytes_; }
  // A piece of the snapshot at `position`, in order: one that begins ends what had come of another. INVALID_ARGUMENT
  // where it does not follow what has come, or does not fit. True when it completes the snapshot. Where blocks of forks
  // leave no room the snapshot is left out, and the older ones stay.
  absl::StatusOr<bool> Take(uint32_t position, uint64_t offset, std::span<const std::byte> piece);
  // The newest complete one at or below `position`; null: there is none.
  const StateSnapshot* FindBelow(uint32_t position) const;
  // The complete one at `position`; null: there is none.
  const StateSnapshot* Find(uint32_t position) const;
  // Of the newest complete one; 0 without one.
  uint32_t newest_position() const { return complete_.empty() ? 0 : complete_.back()->position(); }
  // Forgets those above `position`, and what has come of another.
  void Truncate(uint32_t position);
  void Forget(const StateSnapshot& damaged);
  // With the same complete ones. RESOURCE_EXHAUSTED when the blocks for further ones do not fit.
  absl::StatusOr<StateSnapshots> Fork() const;
  size_t block_bytes() const { return pool_->block_bytes(); }

 private:
  static constexpr size_t kKept = 2;

  StateSnapshots(KvBlockPool* pool, uint64_t state_bytes, KvBlockReservation reservation)
      : pool_(pool), state_bytes_(state_bytes), reservation_(std::move(reservation)) {}
  // Its blocks are promised again, unless a fork has them, too.
  void GiveBack(std::shared_ptr<StateSnapshot> snapshot);
  // Room for another one in the reservation.
  absl::Status MakeRoom();
  static size_t BlocksOfOne(uint64_t state_bytes, size_t block_bytes) {
    return (state_bytes + block_bytes - 1) / block_bytes;
  }
  size_t blocks_needed() const { return BlocksOfOne(state_bytes_, block_bytes()); }

  KvBlockPool* pool_ = nullptr;
  uint64_t state_bytes_ = 0;
  KvBlockReservation reservation_;
  std::deque<std::shared_ptr<StateSnapshot>> complete_;  // in the order of their positions
  std::shared_ptr<StateSnapshot> arriving_;
  // Where one is left out: its position, and how much has come of it.
  uint32_t left_out_ = 0;
  uint64_t left_out_bytes_ = 0;
};

}  // namespace winnow
