#include "cache_rank/store/fast_tier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<PlaceArena>> PlaceArena::Create(size_t place_bytes, size_t places) {
  const size_t bytes = place_bytes * places;
  // NORESERVE: pages are taken as places are first used.
  void* arena = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
  }
  return std::unique_ptr<PlaceArena>(new PlaceArena(static_cast<std::byte*>(arena), place_bytes, places));
}

PlaceArena::~PlaceArena() {
  munmap(arena_, place_bytes_ * places_);
}

std::byte* PlaceArena::Take() {
  if (!free_.empty()) {
    std::byte* place = free_.back();
    free_.pop_back();
    return place;
  }
  WINNOW_CHECK(next_fresh_ < places_);
  return arena_ + place_bytes_ * next_fresh_++;
}

FastTier::FastTier(const Options& options, size_t copy_bytes)
    : capacity_(options.memory_bytes),
      high_(static_cast<size_t>(static_cast<double>(capacity_) * options.high_watermark)),
      low_(static_cast<size_t>(static_cast<double>(capacity_) * options.low_watermark)),
      copy_bytes_(copy_bytes) {
  WINNOW_CHECK(low_ <= high_ && high_ <= capacity_);
}

absl::Status FastTier::Reserve(size_t bytes) {
  if (bytes > free_index_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of index wanted in the fast tier, ",
                                                     free_index_bytes(), " free (", capacity_, " in all, ",
                                                     index_bytes_, " used, ", reserved_bytes_, " reserved)"));
  }
  reserved_bytes_ += bytes;
  return absl::OkStatus();
}

void FastTier::Unreserve(size_t bytes) {
  WINNOW_CHECK(bytes <= reserved_bytes_);
  reserved_bytes_ -= bytes;
}

size_t FastTier::room_for_copies() const {
  const size_t index = index_bytes_ + reserved_bytes_;
  return high_ > index ? (high_ - index) / copy_bytes_ * copy_bytes_ : 0;
}

std::byte* FastTier::Take(size_t bytes) {
  std::unique_ptr<PlaceArena>& arena = arenas_[bytes];
  if (arena == nullptr) {
    // Address space alone: as if the whole tier held places of this size.
    auto created = PlaceArena::Create(bytes, capacity_ / bytes);
    WINNOW_CHECK(created.ok());
    arena = *std::move(created);
  }
  return arena->Take();
}

std::byte* FastTier::AllocateIndex(size_t bytes) {
  Unreserve(bytes);
  MakeRoom(bytes);
  index_bytes_ += bytes;
  WINNOW_CHECK(used() <= capacity_);
  std::byte* index = Take(bytes);
  std::memset(index, 0, bytes);
  return index;
}

void FastTier::FreeIndex(std::byte* index, size_t bytes, bool keep_reserved) {
  arenas_[bytes]->Give(index);
  index_bytes_ -= bytes;
  if (keep_reserved) reserved_bytes_ += bytes;
}

std::byte* FastTier::Touch(uint32_t block) {
  std::byte* rows = Find(block);
  if (rows != nullptr && copies_[block].pins == 0) {
    Unlink(block);
    Link(block);
  }
  return rows;
}

std::byte* FastTier::Admit(uint32_t block) {
  WINNOW_CHECK(Find(block) == nullptr);
  MakeRoom(copy_bytes_);
  if (used() + copy_bytes_ > high_) return nullptr;
  if (block >= copies_.size()) copies_.resize(std::max<size_t>(block + size_t{1}, 2 * copies_.size()));
  copies_[block].rows = Take(copy_bytes_);
  ++num_copies_;
  ++counts_.blocks_loaded;
  Link(block);
  return copies_[block].rows;
}

void FastTier::Drop(uint32_t block) {
  if (Find(block) == nullptr) return;
  Copy& copy = copies_[block];
  WINNOW_CHECK(copy.pins == 0);
  Unlink(block);
  arenas_[copy_bytes_]->Give(copy.rows);
  copy = {};
  --num_copies_;
}

void FastTier::Pin(uint32_t block) {
  if (copies_[block].pins++ == 0) Unlink(block);
}

void FastTier::Unpin(uint32_t block) {
  if (--copies_[block].pins == 0) Link(block);
}

void FastTier::MakeRoom(size_t bytes) {
  if (used() + bytes <= high_) return;
  while (used() + bytes > low_ && oldest_ != kNone) {
    Drop(oldest_);
    ++counts_.blocks_evicted;
  }
}

void FastTier::Link(uint32_t block) {
  Copy& copy = copies_[block];
  copy.older = newest_;
  copy.newer = kNone;
  (newest_ == kNone ? oldest_ : copies_[newest_].newer) = block;
  newest_ = block;
}

void FastTier::Unlink(uint32_t block) {
  Copy& copy = copies_[block];
  (copy.older == kNone ? oldest_ : copies_[copy.older].newer) = copy.newer;
  (copy.newer == kNone ? newest_ : copies_[copy.newer].older) = copy.older;
  copy.older = copy.newer = kNone;
}

}  // namespace winnow
