#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cache_rank/store/page_taker.h"
#include "cache_rank/store/row_checksums.h"
#include "cache_rank/store/row_tiers.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"

namespace winnow {

class KvBlockPool;

// The parts of a block that are index, in bytes: they lie in the fast tier of a pool that has one. 0: the part lies
// with the other blocks.
struct IndexParts {
  size_t rows_bytes = 0;  // of blocks that hold tiles of pages in the place of rows and their tile
  size_t tile_bytes = 0;
  size_t bytes() const { return rows_bytes + tile_bytes; }
};

// A counted reference to one block: kBlockTokens rows of one (layer, kv head) and the index tile of their keys
// (IndexKeysParams). Only the owner of the single reference may write, and only rows that nobody has read yet.
class KvBlock {
 public:
  KvBlock() = default;
  KvBlock(KvBlock&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
  KvBlock& operator=(KvBlock&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(index_, other.index_);
    return *this;
  }
  ~KvBlock();

  explicit operator bool() const { return pool_ != nullptr; }
  KvBlock Share() const;
  bool shared() const;      // somebody else refers to it too
  std::byte* rows() const;  // [kBlockTokens]
  std::byte* tile() const;
  // That the tile may take; of a block of pages, which has no tile, that its row area may.
  size_t tile_bytes() const;
  size_t page_bytes() const;
  uint32_t number() const { return index_; }  // in its pool
  size_t index_bytes() const;                 // in the fast tier

 private:
  friend class KvBlockPool;
  friend class KvBlockReservation;
  KvBlock(KvBlockPool* pool, uint32_t index) : pool_(pool), index_(index) {}
  KvBlockPool* pool_ = nullptr;
  uint32_t index_ = 0;
};

// A promise of blocks that were admitted but are not allocated yet, so that an append never fails.
class KvBlockReservation {
 public:
  KvBlockReservation() = default;
  KvBlockReservation(KvBlockReservation&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        count_(std::exchange(other.count_, 0)),
        index_bytes_(std::exchange(other.index_bytes_, 0)) {}
  KvBlockReservation& operator=(KvBlockReservation&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(count_, other.count_);
    std::swap(index_bytes_, other.index_bytes_);
    return *this;
  }
  ~KvBlockReservation();

  size_t count() const { return count_; }
  // RESOURCE_EXHAUSTED, and nothing changes, when `blocks` more, or bytes of the fast tier for index, are not there.
  absl::Status Extend(size_t blocks, size_t index_bytes = 0);
  // Turns one promised block into a real one with a zeroed tile; the caller knows that one is left, and its index.
  // kAsItIs: the caller calls KvBlockPool::ClearTile.
  enum class Tile { kZeroed, kAsItIs };
  KvBlock Allocate(const IndexParts& index = {}, Tile tile = Tile::kZeroed);
  // A promised block becomes a copy of `block`, with the same parts in the fast tier.
  KvBlock CopyOf(const KvBlock& block);
  // Drops a reference that is the last one and keeps its block promised.
  void Reclaim(KvBlock block);

 private:
  friend class KvBlockPool;
  KvBlockReservation(KvBlockPool* pool, size_t count, size_t index_bytes)
      : pool_(pool), count_(count), index_bytes_(index_bytes) {}
  KvBlockPool* pool_ = nullptr;
  size_t count_ = 0;
  size_t index_bytes_ = 0;  // of the fast tier
};

// Blocks of one size in one anonymous mapping. Invariant: used + reserved <= total, where used counts blocks with at
// least one reference. With two tiers the mapping is the large one: index parts lie in the fast tier, and rows() is the
// place in the large tier, which does not change, whatever copies there are (RowTiers::Gather reads those). One thread;
// references and reservations must not outlive the pool.
class KvBlockPool {
 public:
  // As many blocks as fit `memory_bytes`; INVALID_ARGUMENT when that is less than one of each kv head of a layer.
  // `tiers` may be null: one tier. So many threads take pages for blocks that were promised, before these are filled.
  static absl::StatusOr<std::unique_ptr<KvBlockPool>> Create(size_t memory_bytes, const KvLayout& layout,
                                                             std::unique_ptr<RowTiers> tiers = nullptr,
                                                             int page_threads = 0);
  ~KvBlockPool();
  KvBlockPool(const KvBlockPool&) = delete;
  KvBlockPool& operator=(const KvBlockPool&) = delete;

  // RESOURCE_EXHAUSTED says how many blocks, or bytes of the fast tier for their index, are wanted and free.
  absl::StatusOr<KvBlockReservation> Reserve(size_t blocks, size_t index_bytes = 0);
  // Called with the blocks and bytes of index wanted where fewer are free, to give back what can be spared; null:
  // nothing can.
  void SetReclaimer(std::function<void(size_t, size_t)> reclaimer) { reclaimer_ = std::move(reclaimer); }

  // Zeroes the tile of a block with one tier; of different blocks on any threads.
  void ClearTile(const KvBlock& block) const;

  RowTiers* tiers() const { return tiers_.get(); }  // null: one tier
  // Of the rows of all blocks; a block begins without rows, and a copy with those of its source.
  RowChecksums& checksums() const { return *checksums_; }
  // Damaged rows that readers noted; any thread.
  void CountDamage() { damage_count_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t damage_count() const { return damage_count_.load(std::memory_order_relaxed); }
  bool in_use(uint32_t block) const { return references_[block] > 0; }
  // The place of a block's rows, in the large tier where there are two.
  const std::byte* stored_rows(uint32_t block) const { return arena_ + block * block_bytes_; }

  size_t total() const { return total_; }
  size_t used() const { return used_; }
  size_t reserved() const { return reserved_; }
  size_t free() const { return total_ - used_ - reserved_; }
  size_t block_bytes() const { return block_bytes_; }
  // For index; unlimited with one tier.
  size_t free_index_bytes() const { return tiers_ == nullptr ? SIZE_MAX : tiers_->fast().free_index_bytes(); }

 private:
  friend class KvBlock;
  friend class KvBlockReservation;
  struct FastParts {
    std::byte* memory = nullptr;
    IndexParts parts;
  };
  KvBlockPool(std::byte* arena, size_t arena_bytes, size_t total, const KvLayout& layout,
              std::unique_ptr<RowTiers> tiers, std::unique_ptr<RowChecksums> checksums, int page_threads);
  absl::Status Promise(size_t blocks, size_t index_bytes);
  void TakePages();
  void Unref(uint32_t index, bool keeps_index_promised = false);

  std::byte* const arena_;
  const size_t arena_bytes_;
  const size_t total_;
  const size_t rows_bytes_;
  const size_t block_bytes_;
  size_t used_ = 0;
  size_t reserved_ = 0;
  uint32_t next_fresh_ = 0;           // blocks from here on were never used
  std::vector<uint32_t> free_;        // below next_fresh_, newest last
  std::vector<uint32_t> references_;  // by block
  const std::unique_ptr<RowTiers> tiers_;
  const std::unique_ptr<RowChecksums> checksums_;
  std::vector<FastParts> fast_parts_;  // by block, with two tiers
  std::function<void(size_t, size_t)> reclaimer_;
  std::unique_ptr<PageTaker> page_taker_;  // null: pages are taken as they are written to
  std::atomic<uint64_t> damage_count_{0};
};

// Bytes of one block: rows, then the tile.
size_t BlockBytes(const KvLayout& layout);
// INVALID_ARGUMENT when the memory does not hold a block of each of so many lists (layer, kv head): the shortest
// sequence takes these.
absl::Status CheckPoolMemory(size_t memory_bytes, const KvLayout& layout, size_t num_lists);

}  // namespace winnow
