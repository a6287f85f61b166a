#include "cache_rank/store/state_snapshots.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/wire/crc32c.h"

namespace winnow {

void StateSnapshot::Append(std::span<const std::byte> piece, size_t block_bytes) {
  while (!piece.empty()) {
    const size_t block = filled_ / block_bytes, in_block = filled_ % block_bytes;
    const auto part = piece.first(std::min(piece.size(), block_bytes - in_block));
    std::memcpy(blocks_[block].rows() + in_block, part.data(), part.size());
    if (in_block == 0) checksums_.push_back(0);
    checksums_.back() = Crc32c(part, checksums_.back());
    filled_ += part.size();
    piece = piece.subspan(part.size());
  }
}

bool StateSnapshot::IsIntact(size_t block_bytes) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const size_t bytes = std::min<uint64_t>(block_bytes, filled_ - i * block_bytes);
    if (Crc32c({blocks_[i].rows(), bytes}) != checksums_[i]) return false;
  }
  return true;
}

void StateSnapshot::Read(uint64_t offset, std::span<std::byte> to, size_t block_bytes) const {
  while (!to.empty()) {
    const size_t in_block = offset % block_bytes, bytes = std::min(to.size(), block_bytes - in_block);
    std::memcpy(to.data(), blocks_[offset / block_bytes].rows() + in_block, bytes);
    offset += bytes;
    to = to.subspan(bytes);
  }
}

absl::StatusOr<StateSnapshots> StateSnapshots::Create(KvBlockPool* pool, uint64_t state_bytes) {
  if (state_bytes == 0) return StateSnapshots();
  if (state_bytes / pool->block_bytes() >= pool->total()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("states of ", state_bytes, " bytes do not fit the cache rank's memory"));
  }
  StateSnapshots snapshots(pool, state_bytes, KvBlockReservation());
  WINNOW_ASSIGN_OR_RETURN(snapshots.reservation_, pool->Reserve(BlocksFor(state_bytes, pool->block_bytes())));
  return snapshots;
}

absl::StatusOr<bool> StateSnapshots::Take(uint32_t position, uint64_t offset, std::span<const std::byte> piece) {
  if (piece.empty() || offset >= state_bytes_ || piece.size() > state_bytes_ - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes ", offset, " to ", offset + piece.size(), " of a state of ", state_bytes_));
  }
  if (offset == 0) {
    if (position <= newest_position()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a state at position ", position, " behind one at ", newest_position()));
    }
    if (arriving_ != nullptr) GiveBack(std::move(arriving_));
    left_out_ = 0;
    if (MakeRoom().ok()) {
      arriving_ = std::make_shared<StateSnapshot>(position, state_bytes_);
      for (size_t i = 0; i < blocks_needed(); ++i) {
        arriving_->AddBlock(reservation_.Allocate({}, KvBlockReservation::Tile::kAsItIs));
      }
    } else {
      left_out_ = position;
      left_out_bytes_ = 0;
    }
  }
  const bool is_left_out = arriving_ == nullptr && left_out_ == position && position > 0;
  const bool follows = is_left_out
                           ? left_out_bytes_ == offset
                           : arriving_ != nullptr && arriving_->position() == position && arriving_->filled() == offset;
  if (!follows) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte ", offset, " of the state at position ", position, " follows nothing that has come"));
  }
  if (is_left_out) {
    left_out_bytes_ += piece.size();
    return false;
  }
  arriving_->Append(piece, block_bytes());
  if (!arriving_->is_complete()) return false;
  complete_.push_back(std::move(arriving_));
  arriving_ = nullptr;
  return true;
}

absl::Status StateSnapshots::MakeRoom() {
  while (complete_.size() >= kKept) {
    GiveBack(std::move(complete_.front()));
    complete_.pop_front();
  }
  if (reservation_.count() >= blocks_needed()) return absl::OkStatus();
  return reservation_.Extend(blocks_needed() - reservation_.count());
}

void StateSnapshots::GiveBack(std::shared_ptr<StateSnapshot> snapshot) {
  if (snapshot.use_count() > 1) return;
  for (KvBlock& block : std::move(*snapshot).TakeBlocks()) reservation_.Reclaim(std::move(block));
}

const StateSnapshot* StateSnapshots::FindBelow(uint32_t position) const {
  const auto found = std::find_if(complete_.rbegin(), complete_.rend(),
                                  [&](const auto& snapshot) { return snapshot->position() <= position; });
  return found == complete_.rend() ? nullptr : found->get();
}

const StateSnapshot* StateSnapshots::Find(uint32_t position) const {
  const StateSnapshot* const below = FindBelow(position);
  return below != nullptr && below->position() == position ? below : nullptr;
}

void StateSnapshots::Truncate(uint32_t position) {
  if (arriving_ != nullptr) GiveBack(std::move(arriving_));
  arriving_ = nullptr;
  left_out_ = 0;
  while (newest_position() > position) {
    GiveBack(std::move(complete_.back()));
    complete_.pop_back();
  }
}

void StateSnapshots::Forget(const StateSnapshot& damaged) {
  std::erase_if(complete_, [&](const auto& snapshot) { return snapshot.get() == &damaged; });
}

absl::StatusOr<StateSnapshots> StateSnapshots::Fork() const {
  WINNOW_ASSIGN_OR_RETURN(StateSnapshots fork, Create(pool_, state_bytes_));
  fork.complete_ = complete_;
  return fork;
}

}  // namespace winnow
