#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// Places of one size in one anonymous mapping; memory is taken as places are first used. One thread.
class PlaceArena {
 public:
  // RESOURCE_EXHAUSTED when the address space does not hold `places`.
  static absl::StatusOr<std::unique_ptr<PlaceArena>> Create(size_t place_bytes, size_t places);
  ~PlaceArena();
  PlaceArena(const PlaceArena&) = delete;
  PlaceArena& operator=(const PlaceArena&) = delete;

  std::byte* Take();
  void Give(std::byte* place) { free_.push_back(place); }

 private:
  PlaceArena(std::byte* arena, size_t place_bytes, size_t places)
      : arena_(arena), place_bytes_(place_bytes), places_(places) {}
  std::byte* const arena_;
  const size_t place_bytes_;
  const size_t places_;
  size_t next_fresh_ = 0;
  std::vector<std::byte*> free_;  // newest last
};

// The fast memory of a cache rank whose rows lie in a larger and slower one: the index, which never leaves it, and
// copies of blocks of rows, which come when they are read and go in the order of last use (SparseServe,
// arXiv:2509.24626, section 3.2: HBM as a cache of the KV in DRAM).
//
// Rows are written to the large tier once, so a copy is given up without writing it back. Index and copies together
// never exceed the capacity: what the index takes, copies lose. Where a new copy or index would pass the high
// watermark, copies go until the low one is reached; pinned ones stay. One thread.
class FastTier {
 public:
  struct Options {
    size_t memory_bytes = 0;
    double high_watermark = 0.98;  // shares of the memory
    double low_watermark = 0.92;
  };
  struct Counts {
    uint64_t blocks_loaded = 0;
    uint64_t blocks_evicted = 0;  // to make room; not those whose block was freed
  };

  FastTier(const Options& options, size_t copy_bytes);

  // Index memory is promised first, so that an append never fails. RESOURCE_EXHAUSTED says what is wanted and free.
  absl::Status Reserve(size_t bytes);
  void Unreserve(size_t bytes);
  // Zeroed memory for index out of what is reserved; nothing is pinned meanwhile.
  std::byte* AllocateIndex(size_t bytes);
  // Keeps the bytes promised with `keep_reserved`.
  void FreeIndex(std::byte* index, size_t bytes, bool keep_reserved);

  // The copy of a block, null for none. Touch makes it the newest.
  std::byte* Find(uint32_t block) const { return block < copies_.size() ? copies_[block].rows : nullptr; }
  std::byte* Touch(uint32_t block);
  // A place for the copy of a block that has none, the newest from now on; null when there is no room.
  std::byte* Admit(uint32_t block);
  // The block is freed, or will be written to. Not while it is pinned.
  void Drop(uint32_t block);
  // A copy that is there stays until as many Unpin, and is the newest then.
  void Pin(uint32_t block);
  void Unpin(uint32_t block);

  size_t capacity_bytes() const { return capacity_; }
  size_t index_bytes() const { return index_bytes_; }
  size_t reserved_bytes() const { return reserved_bytes_; }  // for index that is not there yet
  size_t copied_bytes() const { return num_copies_ * copy_bytes_; }
  // What further index can have; copies give way to it.
  size_t free_index_bytes() const { return capacity_ - index_bytes_ - reserved_bytes_; }
  // What copies can have beside the index that is there or promised.
  size_t room_for_copies() const;
  const Counts& counts() const { return counts_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Copy {
    std::byte* rows = nullptr;
    uint32_t older = kNone, newer = kNone;  // while it is not pinned
    uint32_t pins = 0;
  };

  size_t used() const { return index_bytes_ + copied_bytes(); }
  std::byte* Take(size_t bytes);
  void MakeRoom(size_t bytes);
  void Link(uint32_t block);  // as the newest
  void Unlink(uint32_t block);

  const size_t capacity_, high_, low_;
  const size_t copy_bytes_;
  size_t index_bytes_ = 0;
  size_t reserved_bytes_ = 0;
  size_t num_copies_ = 0;
  std::map<size_t, std::unique_ptr<PlaceArena>> arenas_;  // by the size of a place
  std::vector<Copy> copies_;                              // by block
  uint32_t oldest_ = kNone, newest_ = kNone;
  Counts counts_;
};

}  // namespace winnow
